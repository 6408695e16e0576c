"""The paper's equations 1 to 9, and other methods, written out with plain loops over Python floats.

Slow, and meant to be read beside the paper. Nothing here comes from the package under test.
"""

import math

import torch
from torch import Tensor, nn

NORM_FLOOR = 1e-12
Units = list[tuple[float, float]]  # shift and stretch of each channel


def positions(features: Tensor) -> list[list[list[float]]]:
    """``F[i][c]``: the values of sample i and channel c at its L positions."""
    return features.double().reshape(features.shape[0], features.shape[1], -1).tolist()


def instance_means(features: Tensor) -> list[list[float]]:
    """Equation 1."""
    return [[math.fsum(values) / len(values) for values in sample] for sample in positions(features)]


def cosine(a: list[float], b: list[float]) -> float:
    """Equation 2; a zero vector has similarity 0 to everything."""
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    norm_a, norm_b = (max(math.sqrt(math.fsum(x * x for x in v)), NORM_FLOOR) for v in (a, b))
    return dot / (norm_a * norm_b)


def first_neighbours(means: list[list[float]]) -> list[int]:
    """The most similar other sample, the lowest index on ties; a single sample is its own."""
    neighbours = []
    for i in range(len(means)):
        best, best_similarity = i, -math.inf
        for j in range(len(means)):
            if j == i:
                continue
            similarity = cosine(means[i], means[j])
            if similarity > best_similarity:
                best, best_similarity = j, similarity
        neighbours.append(best)
    return neighbours


def adjacency(neighbours: list[int]) -> list[list[bool]]:
    """Equation 3."""
    count = range(len(neighbours))
    return [
        [neighbours[i] == j or neighbours[j] == i or neighbours[i] == neighbours[j] for j in count] for i in count
    ]


def components(first: list[list[bool]]) -> list[int]:
    """Connected components by traversal; labels count up in order of first appearance."""
    labels = [-1] * len(first)
    label = 0
    for start in range(len(first)):
        if labels[start] >= 0:
            continue
        waiting = [start]
        while waiting:
            node = waiting.pop()
            if labels[node] < 0:
                labels[node] = label
                waiting += [other for other in range(len(first)) if first[node][other]]
        label += 1
    return labels


def partition(features: Tensor) -> list[int]:
    """Equations 1 to 3: the group of each sample."""
    return components(adjacency(first_neighbours(instance_means(features))))


def mean_and_variance(values: list[float]) -> tuple[float, float]:
    """Mean and biased variance of a list of numbers."""
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / len(values)


def group_moments(
    features: Tensor, labels: list[int], estimator: str = "biased", eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Equation 4, for each sample the moments of its group, ``(B, C)``; or another estimator of the variance."""
    values = positions(features)
    mean, variance = torch.zeros(2, len(values), len(values[0]), dtype=torch.float64)
    for label in set(labels):
        members = [i for i, other in enumerate(labels) if other == label]
        for c in range(len(values[0])):
            moments = ESTIMATORS[estimator]([values[i][c] for i in members], eps)
            for i in members:
                mean[i, c], variance[i, c] = moments
    return mean, variance


def biased_moments(samples: list[list[float]], eps: float) -> tuple[float, float]:
    """Equation 4."""
    return mean_and_variance([value for sample in samples for value in sample])


def unbiased_moments(samples: list[list[float]], eps: float) -> tuple[float, float]:
    """What the authors' code of 2024 computes, and 0 for a single value."""
    values = [value for sample in samples for value in sample]
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)


def instance_unbiased_moments(samples: list[list[float]], eps: float) -> tuple[float, float]:
    """What the authors' code of 2025 computes, and 0 for the variance of a single value."""
    means, variances = zip(*(unbiased_moments([sample], eps) for sample in samples), strict=True)
    size = len(samples) + eps
    mean = math.fsum(means) / size
    within = math.fsum(variances) / size
    between = math.fsum((one - mean) ** 2 for one in means) / size
    return mean, within + between


ESTIMATORS = {
    "biased": biased_moments,
    "unbiased": unbiased_moments,
    "instance-unbiased": instance_unbiased_moments,
}


def batch_moments(features: Tensor, estimator: str = "biased") -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel over the whole batch, ``(C,)``."""
    mean, variance = group_moments(features, [0] * len(features), estimator)
    return mean[0], variance[0]


def normalize(features: Tensor, mean: Tensor, variance: Tensor, norm: nn.Module) -> Tensor:
    """Equation 7, with the affine parameters and epsilon of ``norm``."""
    result = torch.empty_like(features, dtype=torch.float64)
    for i in range(features.shape[0]):
        for c in range(features.shape[1]):
            scaled = (features[i, c].double() - mean[i, c]) / math.sqrt(variance[i, c] + norm.eps)
            gamma = 1.0 if norm.weight is None else norm.weight[c].item()
            beta = 0.0 if norm.bias is None else norm.bias[c].item()
            result[i, c] = gamma * scaled + beta
    return result


def fabn(
    features: Tensor,
    norm: nn.Module,
    alpha: float = 0.8,
    labels: list[int] | None = None,
    estimator: str = "biased",
) -> Tensor:
    """Equations 1 to 7 in float64: what FIND makes of the input of the BatchNorm layer ``norm``."""
    if norm.running_mean is None:
        source_mean, source_variance = batch_moments(features)
    else:
        source_mean, source_variance = norm.running_mean.double(), norm.running_var.double()
    labels = partition(features) if labels is None else labels
    mean, variance = group_moments(features, labels, estimator, norm.eps)
    mean = alpha * source_mean + (1 - alpha) * mean
    variance = alpha * source_variance + (1 - alpha) * variance
    return normalize(features, mean, variance, norm)


def kl(features: Tensor, norm: nn.Module) -> list[float]:
    """Equation 8 for each channel; both variances are at least epsilon."""
    target_mean, target_variance = batch_moments(features)
    result = []
    for c in range(features.shape[1]):
        moved = float(target_mean[c]) - float(norm.running_mean[c])
        target, source = (max(float(v[c]), norm.eps) for v in (target_variance, norm.running_var))
        result.append((target + moved**2) / (2 * source) + math.log(math.sqrt(source / target)) - 0.5)
    return result


def score(divergence: list[float]) -> float:
    """Equation 9."""
    mean, variance = mean_and_variance(divergence)
    return (1 + 1 / (1 + math.exp(-math.sqrt(variance)))) * mean


def min_max(scores: list[float]) -> list[float]:
    """Scores brought to [0, 1] over the layers."""
    low, high = min(scores), max(scores)
    return [(value - low) / (high - low) for value in scores]


class ReferenceFABN(nn.Module):
    """Stands in for a BatchNorm layer; collects the score of each batch it sees."""

    def __init__(self, norm: nn.Module, alpha: float = 0.8, estimator: str = "biased") -> None:
        super().__init__()
        self.norm, self.alpha, self.estimator = norm, alpha, estimator
        self.scores: list[float] = []

    def forward(self, features: Tensor) -> Tensor:
        if self.norm.running_mean is not None:
            self.scores.append(score(kl(features, self.norm)))
        return fabn(features, self.norm, self.alpha, estimator=self.estimator).to(features.dtype)


# FIND with soft neighbourhoods, which is not of the paper.


def in_source_units(
    mean: float, variance: float, source_mean: float, source_variance: float, eps: float
) -> tuple[float, float]:
    """Shift and stretch of one channel of one sample against the source."""
    deviation = math.sqrt(source_variance + eps)
    return (mean - source_mean) / deviation, math.sqrt(variance + eps) / deviation


def wasserstein_squared(one: Units, other: Units) -> float:
    """Squared 2-Wasserstein distance of two Gaussians with independent channels, (mean, deviation) each."""
    pairs = zip(one, other, strict=True)
    return math.fsum((m - n) ** 2 + (s - t) ** 2 for (m, s), (n, t) in pairs)


def similarity(one: Units, other: Units) -> float:
    """1 for the same drift, 0 for drifts that have nothing to do with each other, -1 for opposite ones."""
    source = [(0.0, 1.0)] * len(one)
    from_source = wasserstein_squared(one, source) + wasserstein_squared(other, source)
    return 1 - wasserstein_squared(one, other) / from_source if from_source else 0.0


def soft_neighbours(samples: list[Units], temperature: float) -> list[list[float]]:
    """Softmax over similarity; a sample is as near to itself as its nearest neighbour is."""
    weights = []
    for i, own in enumerate(samples):
        others = {j: similarity(own, other) for j, other in enumerate(samples) if j != i}
        nearest = max(others.values(), default=0.0)
        shares = [math.exp((others.get(j, nearest) - nearest) / temperature) for j in range(len(samples))]
        weights.append([share / math.fsum(shares) for share in shares])
    return weights


def mixture_moments(means: list[float], variances: list[float], weights: list[float]) -> tuple[float, float]:
    """Mean and variance of one channel of a mixture: within its parts plus between them."""
    mean = math.fsum(w * m for w, m in zip(weights, means, strict=True))
    parts = zip(weights, means, variances, strict=True)
    return mean, math.fsum(w * (v + (m - mean) ** 2) for w, m, v in parts)


def divergence(mean: float, variance: float) -> float:
    """KL divergence of a Gaussian from the standard one."""
    return (variance + mean**2 - 1 - math.log(variance)) / 2


def log_drift(channels: list[tuple[float, float]], own_share: float) -> float:
    """Logarithm of the mean divergence of the channels, divided by one plus the sample's own share."""
    mean = math.fsum(divergence(*channel) for channel in channels) / len(channels)
    return math.log(max(mean / (1 + own_share), 1e-6))


def drift_gate(evidence: float, layers: int, threshold: float, sharpness: float) -> float:
    """``d^s / (d^s + t^s)`` of the drift ``d``, whose logarithm is the evidence; ``t`` falls with depth."""
    drift, threshold = math.exp(evidence), threshold * layers**-0.4
    return drift**sharpness / (drift**sharpness + threshold**sharpness)


def common_share(samples: list[list[float]], drift: list[float]) -> tuple[float, float]:
    """Weighted mean inner product of two samples over that of one with itself; and the sum of squared weights."""
    centred = [[value - math.fsum(sample) / len(sample) for value in sample] for sample in samples]
    count = range(len(samples))
    shares = [math.exp(-2 * value) for value in drift]
    weights = [value / math.fsum(shares) for value in shares]

    def product(i: int, j: int) -> float:
        return math.fsum(a * b for a, b in zip(centred[i], centred[j], strict=True))

    pairs = math.fsum(weights[i] * weights[j] * product(i, j) for i in count for j in count if i != j)
    own = math.fsum(weights[i] * product(i, i) for i in count)
    squares = math.fsum(weight**2 for weight in weights)
    return (pairs / (max(1 - squares, 0.05) * own) if own else 0.0), squares


def class_guard(share: float, earlier: list[float], squares: float) -> float:
    """``a^8 / (a^8 + s^8)`` of the common share ``s`` and the allowed one ``a``."""
    mean = max(0.0, math.fsum(earlier) / len(earlier))
    allowed = 3.0 * mean**2 + 0.5 * squares
    return allowed**8 / (allowed**8 + max(0.0, share) ** 8)


class ReferenceSoft(nn.Module):
    """Stands in for a BatchNorm layer of FIND with soft neighbourhoods.

    ``history`` is shared by the ``layers`` layers of a model: for each one passed, the evidence of each sample;
    ``shares``, for each one in the middle of the model, the common share. Empty them before each batch.
    """

    def __init__(
        self,
        norm: nn.Module,
        history: list[list[float]],
        shares: list[float] | None = None,
        layers: int = 1,
        alpha=0.7,
        temperature=0.2,
        threshold=0.15,
        sharpness=6.0,
        guard=1.0,
    ) -> None:
        super().__init__()
        self.norm, self.history = norm, history
        self.shares = [] if shares is None else shares
        self.layers, self.guard = layers, guard
        self.alpha, self.temperature, self.threshold, self.sharpness = alpha, temperature, threshold, sharpness

    def forward(self, features: Tensor) -> Tensor:
        eps, count, channels = self.norm.eps, range(features.shape[0]), range(features.shape[1])
        source_mean, source_variance = self.norm.running_mean.tolist(), self.norm.running_var.tolist()
        samples = [
            [
                in_source_units(*mean_and_variance(values), source_mean[c], source_variance[c], eps)
                for c, values in enumerate(sample)
            ]
            for sample in positions(features)
        ]
        weights = soft_neighbours(samples, self.temperature)
        columns = [tuple(zip(*(sample[c] for sample in samples), strict=True)) for c in channels]
        near = [
            [mixture_moments(means, [d**2 for d in deviations], row) for means, deviations in columns]
            for row in weights
        ]
        self.history.append([log_drift(near[i], weights[i][i]) for i in count])
        layers = len(self.history)
        evidence = [math.fsum(layer[i] for layer in self.history) / layers for i in count]
        share, squares = common_share([[shift for shift, _ in sample] for sample in samples], evidence)
        depth, guard = layers / self.layers, 1.0
        if 0.5 < depth <= 0.85:
            self.shares.append(share)
        elif depth > 0.85 and self.shares:
            guard = 0.8 * class_guard(share, self.shares, squares)
        mean, variance = torch.zeros(2, len(count), len(channels), dtype=torch.float64)
        for i in count:
            trust = (1 - self.alpha) * drift_gate(evidence[i], layers, self.threshold, self.sharpness)
            trust *= 1 - self.guard + self.guard * guard
            for c in channels:
                unit = source_variance[c] + eps
                near_mean = source_mean[c] + near[i][c][0] * math.sqrt(unit)
                near_variance = near[i][c][1] * unit - eps
                mean[i, c] = (1 - trust) * source_mean[c] + trust * near_mean
                variance[i, c] = (1 - trust) * source_variance[c] + trust * near_variance
        return normalize(features, mean, variance, self.norm).to(features.dtype)


# UnMix-TNS: Tomar et al., ICLR 2024.


def assignment(mean: list[float], centres: list[list[float]], temperature: float) -> list[float]:
    """How much an instance belongs to each component: a softmax of cosine similarities."""
    weights = [math.exp(cosine(mean, centre) / temperature) for centre in centres]
    return [weight / math.fsum(weights) for weight in weights]


def unmix(
    features: Tensor,
    centres: list[list[float]],
    variances: list[list[float]],
    rate: float,
    temperature: float = 0.07,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance for each instance, ``(B, C)``, and the components after the batch, ``(K, C)``."""
    samples = [[mean_and_variance(values) for values in sample] for sample in positions(features)]
    shares = [assignment([mean for mean, _ in sample], centres, temperature) for sample in samples]
    channels, components = range(len(centres[0])), range(len(centres))
    statistics = []
    for sample, share in zip(samples, shares, strict=True):
        row = []
        for c in channels:
            mean, variance = sample[c]
            moved = [(1 - share[k]) * centres[k][c] + share[k] * mean for k in components]
            spread = [(1 - share[k]) * variances[k][c] + share[k] * variance for k in components]
            centre, between = mean_and_variance(moved)
            row.append((centre, math.fsum(spread) / len(spread) + between))
        statistics.append(row)

    def after(kept: list[list[float]], moment: int) -> Tensor:
        """Components after the batch: each moves by the average pull of the samples."""
        count = range(len(samples))
        pulls = [
            [math.fsum(shares[i][k] * (samples[i][c][moment] - kept[k][c]) for i in count) for c in channels]
            for k in components
        ]
        moved = rate / len(samples) * torch.tensor(pulls, dtype=torch.float64)
        return torch.tensor(kept, dtype=torch.float64) + moved

    used = torch.tensor(statistics, dtype=torch.float64)
    return used[..., 0], used[..., 1], after(centres, 0), after(variances, 1)


# ROID: Marsden et al., WACV 2024.


def roid_weights(probabilities: list[list[float]], average: list[float], temperature: float) -> list[float]:
    """Weights by diversity and certainty; 0 for samples that are less diverse than the mean."""
    diversity = min_max([1 - cosine(average, row) for row in probabilities])
    certainty = min_max([math.fsum(p * math.log(p) for p in row) for row in probabilities])
    mean = math.fsum(diversity) / len(diversity)
    return [0.0 if d < mean else math.exp(d * c / temperature) for d, c in zip(diversity, certainty, strict=True)]


def soft_likelihood_ratio(probabilities: list[float]) -> float:
    """Log odds, weighed by probabilities that are cut off at 0.99."""
    clipped = [min(p, 0.99) for p in probabilities]
    return -math.fsum(q * math.log(q / (1 - q) + 1e-5) for q in clipped)


def smoothed_prior(probabilities: list[list[float]]) -> list[float]:
    """Mean prediction of a batch, smoothed."""
    count, classes = len(probabilities), len(probabilities[0])
    prior = [math.fsum(row[k] for row in probabilities) / count for k in range(classes)]
    smoothing = max(1 / count, 1 / classes) / max(prior)
    return [(share + smoothing) / (1 + smoothing * classes) for share in prior]


# LAME and T3A, which change outputs.


def softmax(values: list[float]) -> list[float]:
    shares = [math.exp(value - max(values)) for value in values]
    return [share / math.fsum(shares) for share in shares]


def lame_affinity(features: Tensor, kind: str = "rbf", neighbours: int = 5) -> list[list[float]]:
    """Affinity of every two images, from their normalised features."""
    rows = features.double().tolist()
    count = range(len(rows))
    if kind == "linear":
        return [[cosine(rows[i], rows[j]) for j in count] for i in count]
    units = [[value / math.sqrt(math.fsum(v * v for v in row)) for value in row] for row in rows]
    distance = [[math.dist(one, other) for other in units] for one in units]
    if kind == "knn":
        others = [sorted((j for j in count if j != i), key=distance[i].__getitem__)[:neighbours] for i in count]
        return [[float(j in others[i]) for j in count] for i in count]
    last = [sorted(row)[min(neighbours, len(rows)) - 1] for row in distance]  # itself counted
    bandwidth = max(math.fsum(last) / len(last), 1e-3)
    return [[math.exp(-(d**2) / (2 * bandwidth**2)) for d in row] for row in distance]


def lame(features: Tensor, logits: Tensor, kind: str = "rbf", neighbours: int = 5, steps: int = 100) -> Tensor:
    """Assignments that minimise LAME's energy, by its concave-convex procedure."""
    affinity = lame_affinity(features, kind, neighbours)
    unary = [[-math.log(p + 1e-10) for p in softmax(row)] for row in logits.double().tolist()]
    images, classes = range(len(unary)), range(len(unary[0]))
    z = [softmax([-u for u in row]) for row in unary]
    before = math.inf
    for step in range(steps):
        pairwise = [[math.fsum(affinity[i][j] * z[j][k] for j in images) for k in classes] for i in images]
        z = [softmax([pairwise[i][k] - unary[i][k] for k in classes]) for i in images]
        energy = math.fsum(
            z[i][k] * (unary[i][k] - pairwise[i][k] + math.log(max(z[i][k], 1e-20)))
            for i in images
            for k in classes
        )
        if step > 1 and abs(energy - before) <= 1e-8 * abs(before):
            break
        before = energy
    return torch.tensor(z, dtype=torch.float64)


def entropy(logits: list[float]) -> float:
    return -math.fsum(p * math.log(p) for p in softmax(logits) if p > 0)


class ReferenceT3A:
    """Supports as a list for each class, of (entropy, features)."""

    def __init__(self, weight: Tensor, bias: Tensor, most: int) -> None:
        self.most = most
        self.supports: list[list[tuple[float, list[float]]]] = [[] for _ in weight]
        self.add(weight, weight.double() @ weight.double().T + bias.double())

    def add(self, features: Tensor, logits: Tensor) -> None:
        for row, scores in zip(features.double().tolist(), logits.double().tolist(), strict=True):
            self.supports[scores.index(max(scores))].append((entropy(scores), row))
        self.supports = [sorted(of_class, key=lambda pair: pair[0])[: self.most] for of_class in self.supports]

    def __call__(self, features: Tensor, logits: Tensor) -> Tensor:
        self.add(features, logits)
        width = features.shape[1]
        outputs = torch.zeros(len(features), len(self.supports), dtype=torch.float64)
        for k, of_class in enumerate(self.supports):
            lengths = [math.sqrt(math.fsum(v * v for v in row)) for _, row in of_class]
            total = [
                math.fsum(row[f] / length for (_, row), length in zip(of_class, lengths, strict=True))
                for f in range(width)
            ]
            length = max(math.sqrt(math.fsum(value * value for value in total)), NORM_FLOOR)
            for i, row in enumerate(features.double().tolist()):
                outputs[i, k] = math.fsum(x * y for x, y in zip(row, total, strict=True)) / length
        return outputs


# FIND with a memory of domains, which is not of the paper.


def frequencies(image: Tensor) -> list[float]:
    """98 numbers of one image, ``(C, H, W)``, whose sides are multiples of 4."""
    channels = image.double().tolist()
    height, width = range(len(channels[0])), range(len(channels[0][0]))
    grey = [[math.fsum(plane[y][x] for plane in channels) / len(channels) for x in width] for y in height]
    first, last = (
        [[plane[y][x] - grey[y][x] for x in width] for y in height] for plane in (channels[0], channels[-1])
    )
    pixels = [value for plane in channels for row in plane for value in row]
    extent = max(pixels) - min(pixels)

    def wave(frequency: int, place: int) -> float:
        scale = math.sqrt((1 if frequency == 0 else 2) / 4)
        return scale * math.cos(math.pi * (2 * place + 1) * frequency / 8)

    mean_energies, log_energies = [], []
    for plane in (grey, first, last):
        mean = math.fsum(value for row in plane for value in row) / (len(height) * len(width))
        plane = [[value - mean for value in row] for row in plane]
        for v in range(4):
            for h in range(4):
                energies = [
                    math.fsum(plane[y + i][x + j] * wave(v, i) * wave(h, j) for i in range(4) for j in range(4))
                    ** 2
                    for y in height[::4]
                    for x in width[::4]
                ]
                mean_energies.append(math.log(math.fsum(energies) / len(energies) + 1e-6 * extent**2))
                logarithms = [math.log(energy + 1e-4 * extent**2) for energy in energies]
                log_energies.append(math.fsum(logarithms) / len(logarithms))
    low = sum(value <= min(pixels) + 0.004 * extent for value in pixels)
    high = sum(value >= max(pixels) - 0.004 * extent for value in pixels)
    ends = [math.log(count / len(pixels) + 1e-3) for count in (low, high)]
    return mean_energies + log_energies + ends


def squared_distance(a: list[float], b: list[float]) -> float:
    return math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))


class ReferenceMemory:
    """Domains as dictionaries, in a list of ``places``; None where a place is free."""

    def __init__(self, places: int, memory: float, forget: float) -> None:
        self.domains: list[dict | None] = [None] * places
        self.memory, self.forget = memory, forget

    def nearest(self, point: list[float]) -> tuple[float, int]:
        """How far the nearest domain is, and its place."""
        known = [(k, domain) for k, domain in enumerate(self.domains) if domain is not None]
        far = [(squared_distance(point, d["centre"]) / (1 + 1 / max(d["count"], 1)), k) for k, d in known]
        return min(far, default=(math.inf, -1))

    def first_beyond(self, points: list[list[float]], far: list[float], limit: float) -> list[int]:
        """Samples farther than the limit, without those that are close to another such sample before them."""
        beyond = [i for i in range(len(points)) if far[i] > limit]
        return [
            i for i in beyond if all(squared_distance(points[i], points[j]) / 2 >= limit for j in beyond if j < i)
        ]

    def join(self, points: list[list[float]]) -> list[int]:
        """Return the place of the domain of each sample, after all have joined."""
        for domain in filter(None, self.domains):
            domain["usage"] *= math.exp(-len(points) / self.forget)
        far = [self.nearest(point)[0] for point in points]
        novel = self.first_beyond(points, far, 2.0)
        free = [k for k, domain in enumerate(self.domains) if domain is None]
        used = [k for k, domain in enumerate(self.domains) if domain is not None]
        places = free + sorted(used, key=lambda k: self.domains[k]["usage"])
        new = sorted(self.first_beyond(points, far, 0.6), key=lambda i: -far[i])
        for rank, i in enumerate(new[: len(places)]):
            if rank < len(free) or i in novel:
                empty = {"centre": points[i], "count": 0.0, "usage": 0.0, "drift": [], "layers": {}}
                self.domains[places[rank]] = empty
        joined = [self.nearest(point)[1] for point in points]
        for k, domain in enumerate(self.domains):
            members = [point for point, place in zip(points, joined, strict=True) if place == k]
            if domain is None or not members:
                continue
            room = max(0.0, self.memory - len(members))
            kept = 1.0
            if domain["count"]:
                newcomers = [math.fsum(values) / len(members) for values in zip(*members, strict=True)]
                by_chance = 1.5 * (1 / len(members) + 1 / domain["count"])
                apart = max(0.0, squared_distance(newcomers, domain["centre"]) - by_chance)
                kept = min(1.0, room / domain["count"], 1 / (1 + domain["count"] * apart))
            old = domain["count"] * kept
            domain["count"] = old + len(members)
            domain["centre"] = [
                (old * centre + math.fsum(values)) / domain["count"]
                for centre, *values in zip(domain["centre"], *members, strict=True)
            ]
            domain["usage"] += len(members)
            for remembered in [
                domain["drift"],
                *domain["layers"].values(),
            ]:  # pairs of a weight and what is weighed
                remembered[:] = [(weight * kept, what) for weight, what in remembered if weight * kept]
        return joined

    def weights(self, place: int) -> dict[int, float]:
        """Weights of the domains for a sample of one of them."""
        own, shares = self.domains[place], {}
        for k, domain in enumerate(self.domains):
            if domain is not None:
                apart = squared_distance(own["centre"], domain["centre"]) - 1 / own["count"] - 1 / domain["count"]
                shares[k] = domain["count"] * math.exp(-6 * max(0.0, apart))
        return {k: share / math.fsum(shares.values()) for k, share in shares.items()}


class ReferenceDomains(nn.Module):
    """Stands in for a BatchNorm layer of FIND with a memory of domains.

    ``batch`` is shared by the layers of a model: ``places`` of the samples, as the memory returned them, and
    ``history``, for each layer passed, the log drift of each sample; empty it before each batch.
    """

    def __init__(self, norm, memory: ReferenceMemory, batch: dict, layers: int, alpha=0.5, threshold=0.075):
        super().__init__()
        self.norm, self.memory, self.batch, self.layers = norm, memory, batch, layers
        self.alpha, self.threshold = alpha, threshold

    def forward(self, features: Tensor) -> Tensor:
        eps, domains, places = self.norm.eps, self.memory.domains, self.batch["places"]
        source_mean, source_variance = self.norm.running_mean.tolist(), self.norm.running_var.tolist()
        for place, sample in zip(places, positions(features), strict=True):
            units = [
                in_source_units(*mean_and_variance(values), source_mean[c], source_variance[c], eps)
                for c, values in enumerate(sample)
            ]
            domains[place]["layers"].setdefault(self, []).append((1.0, units))
        drift, statistics, chance = [], [], []
        for place in places:
            weights = self.memory.weights(place)
            parts = []  # weight and moments of every sample that is remembered
            for k, weight in weights.items():
                remembered = domains[k]["layers"][self]
                number = math.fsum(w for w, _ in remembered)
                parts += [(weight * w / number, units) for w, units in remembered]
            near = [
                mixture_moments(
                    [u[c][0] for _, u in parts], [u[c][1] ** 2 for _, u in parts], [w for w, _ in parts]
                )
                for c in range(features.shape[1])
            ]
            chance.append(8 * math.fsum(weight**2 / domains[k]["count"] for k, weight in weights.items()))
            mean = math.fsum(divergence(*channel) for channel in near) / len(near)
            drift.append(math.log(max(mean / (1 + chance[-1]), 1e-6)))
            statistics.append(near)
        self.batch["history"].append(drift)
        passed = len(self.batch["history"])
        threshold = math.log(self.threshold * passed**-0.4)
        mean, variance = torch.zeros(2, len(places), features.shape[1], dtype=torch.float64)
        for i, place in enumerate(places):
            own = math.fsum(layer[i] for layer in self.batch["history"]) / passed - threshold
            known = {k: w for k, w in self.memory.weights(place).items() if domains[k]["drift"]}
            recalled = math.fsum(
                w * math.fsum(a * b for a, b in domains[k]["drift"]) / math.fsum(a for a, _ in domains[k]["drift"])
                for k, w in known.items()
            )
            total = math.fsum(known.values())
            evidence = (passed * own + self.layers * recalled) / (passed + self.layers * total)
            trust = (1 - self.alpha) / (1 + math.exp(-6 * evidence)) / (1 + chance[i])
            self.batch.setdefault("own", {})[i] = own
            for c, (shift, spread) in enumerate(statistics[i]):
                unit = source_variance[c] + eps
                mean[i, c] = source_mean[c] + trust * shift * math.sqrt(unit)
                variance[i, c] = source_variance[c] + trust * (spread - 1) * unit
        return normalize(features, mean, variance, self.norm).to(features.dtype)


def domains_forward(
    model: nn.Module, memory: ReferenceMemory, batch: dict, points: Tensor, images: Tensor
) -> Tensor:
    """Run a model of reference layers on images with these descriptions; the domains remember their drift."""
    batch.update(places=memory.join(points.tolist()), history=[], own={})
    with torch.no_grad():
        outputs = model(images)
    for i, place in enumerate(batch["places"]):
        memory.domains[place]["drift"].append((1.0, batch["own"][i]))
    return outputs
