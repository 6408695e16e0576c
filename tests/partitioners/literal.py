"""Literal, slow transcriptions of the formulas, one number at a time."""

import math

Rows = list[list[float]]


def distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def components(count: int, edges: list[tuple[int, int]]) -> list[int]:
    labels = list(range(count))
    changed = True
    while changed:
        changed = False
        for i, j in edges:
            low = min(labels[i], labels[j])
            changed = changed or labels[i] != low or labels[j] != low
            labels[i] = labels[j] = low
    return labels


def minimum_spanning_edges(count: int, weighted: list[tuple[float, int, int]]) -> list[tuple[int, int]]:
    """Kruskal: the lightest edge first, unless both its ends are joined already."""
    chosen: list[tuple[int, int]] = []
    for _, i, j in sorted(weighted):
        labels = components(count, chosen)
        if labels[i] != labels[j]:
            chosen.append((i, j))
    return chosen


def rcc_edges(points: Rows, neighbours: int) -> list[tuple[int, int]]:
    count = len(points)
    nearest = []
    for i in range(count):
        others = sorted((distance(points[i], points[j]), j) for j in range(count) if j != i)
        nearest.append({j for _, j in others[:neighbours]})
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    mutual = {(i, j) for i, j in pairs if j in nearest[i] and i in nearest[j]}
    graph = [(distance(points[i], points[j]), i, j) for i, j in pairs if j in nearest[i] or i in nearest[j]]
    return sorted(mutual | set(minimum_spanning_edges(count, graph)))


def solve(matrix: Rows, right: Rows) -> Rows:
    """Gauss and Jordan, with the largest pivot."""
    size = len(matrix)
    table = [[*row, *values] for row, values in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(table[row][column]))
        table[column], table[pivot] = table[pivot], table[column]
        table[column] = [value / table[column][column] for value in table[column]]
        for row in range(size):
            if row != column:
                factor = table[row][column]
                table[row] = [a - factor * b for a, b in zip(table[row], table[column], strict=True)]
    return [row[size:] for row in table]


def largest_eigenvalue(matrix: Rows) -> float:
    """Power iteration, for a symmetric matrix without negative eigenvalues."""
    vector = [1 + 0.1 * math.sin(7 * i + 1) for i in range(len(matrix))]
    value, before, step = 1.0, 0.0, 0
    while step < 30 or (step < 3000 and abs(value - before) > 1e-14 * value):
        product = [sum(a * x for a, x in zip(row, vector, strict=True)) for row in matrix]
        before, value = value, math.sqrt(sum(x * x for x in product))
        vector = [x / value for x in product]
        step += 1
    return value


def laplacian(count: int, edges: list[tuple[int, int]], weights: list[float]) -> Rows:
    table = [[0.0] * count for _ in range(count)]
    for (i, j), weight in zip(edges, weights, strict=True):
        table[i][j] -= weight
        table[j][i] -= weight
        table[i][i] += weight
        table[j][j] += weight
    return table


def rcc(points: Rows, neighbours: int = 10, threshold: float = 1.0) -> list[int]:
    """Robust continuous clustering."""
    count, channels = len(points), len(points[0])
    edges = rcc_edges(points, min(neighbours, count - 1))
    degree = [sum(i in edge for edge in edges) for i in range(count)]
    average = sum(degree) / count
    w = [average / math.sqrt(degree[i] * degree[j]) for i, j in edges]

    delta = [
        math.sqrt(sum((a - b) ** 2 + 1e-5 for a, b in zip(points[i], points[j], strict=True))) for i, j in edges
    ]
    longest = max(delta)
    delta = sorted(longest if value / math.sqrt(channels) < 0.01 else value for value in delta)
    mu = 3 * delta[-1] ** 2
    few = min(250, max(1, math.ceil(0.01 * len(delta))))
    radius = sum(delta[:few]) / few

    gram = [[sum(a * b for a, b in zip(p, q, strict=True)) for q in points] for p in points]
    norm = math.sqrt(largest_eigenvalue(gram))
    lam = norm / largest_eigenvalue(laplacian(count, edges, w))
    u, objective, inner = points, math.inf, 0
    for _ in range(100):
        pull = [(mu / (mu + distance(u[i], u[j]) ** 2)) ** 2 for i, j in edges]
        attraction = laplacian(count, edges, [a * b for a, b in zip(w, pull, strict=True)])
        system = [[(i == j) + lam * attraction[i][j] for j in range(count)] for i in range(count)]
        u = solve(system, points)
        previous, objective = objective, 0.0
        for p, q in zip(points, u, strict=True):
            objective += 0.5 * distance(p, q) ** 2
        for (i, j), weight, force in zip(edges, w, pull, strict=True):
            penalty = mu * (math.sqrt(force + 1e-5) - 1) ** 2
            objective += lam / 2 * weight * (force * distance(u[i], u[j]) ** 2 + penalty)
        inner += 1
        if abs(previous - objective) < 0.1 or inner == 4:
            if mu >= radius:
                mu = mu / 2
            elif inner == 4:
                mu = radius / 2
            else:
                break
            lam = norm / largest_eigenvalue(attraction)
            inner = 0
    return components(count, [(i, j) for i, j in edges if distance(u[i], u[j]) <= threshold * radius])


def equalized(similarity: Rows, bins: int = 100) -> Rows:
    """Equalise the histogram of all entries off the diagonal."""
    count = len(similarity)
    values = [similarity[i][j] for i in range(count) for j in range(count) if i != j]
    low, high = min(values), max(values)

    def bin_of(value: float) -> int:
        return 0 if high == low else min(bins - 1, int((value - low) / (high - low) * bins))

    def mapped(value: float) -> float:
        mine = bin_of(value)
        below = sum(bin_of(other) < mine for other in values) / len(values)
        above = sum(bin_of(other) <= mine for other in values) / len(values)
        members = [other for other in values if bin_of(other) == mine]
        if max(members) == min(members):
            return (below + above) / 2
        return below + (value - min(members)) / (max(members) - min(members)) * (above - below)

    known = {value: mapped(value) for value in set(values)}
    return [[1.0 if i == j else known[similarity[i][j]] for j in range(count)] for i in range(count)]


def dominant_set(similarity: Rows, free: list[bool], tolerance: float = 1e-4) -> set[int]:
    """Infection and immunisation dynamics, from equal shares of the free samples."""
    count = len(similarity)
    x = [1 / sum(free) if is_free else 0.0 for is_free in free]
    for _ in range(1000):
        g = [sum(similarity[i][j] * x[j] for j in range(count)) for i in range(count)]
        mean = sum(a * b for a, b in zip(x, g, strict=True))
        r = [value - mean for value in g]
        if math.sqrt(sum(min(share, -gain) ** 2 for share, gain in zip(x, r, strict=True))) < tolerance:
            break
        i = max(range(count), key=lambda k: r[k])
        j = min((k for k in range(count) if x[k] > 0), key=lambda k: r[k])
        if -r[j] > r[i]:
            den = similarity[j][j] - g[j] - r[j]
            step = x[j] / (x[j] - 1)
            if den < 0 and -r[j] / den > step:
                step = -r[j] / den
                x = [share + step * ((k == j) - share) for k, share in enumerate(x)]
            else:
                x = [0.0 if k == j else share - step * share for k, share in enumerate(x)]
        else:
            den = similarity[i][i] - g[i] - r[i]
            step = min(1.0, -r[i] / den) if den < 0 else 1.0
            x = [share + step * ((k == i) - share) for k, share in enumerate(x)]
        total = sum(x)
        x = [share / total for share in x]
    return {k for k in range(count) if x[k] > 0}


def dsets_dbscan(points: Rows) -> list[int]:
    """Dominant sets, each extended by DBSCAN; -1 for the samples left over."""
    count = len(points)
    table = [[distance(p, q) for q in points] for p in points]
    mean = sum(map(sum, table)) / count**2
    similarity = equalized([[math.exp(-value / mean) for value in row] for row in table])
    apart = [[-math.log(value) if value > 0 else math.inf for value in row] for row in similarity]
    labels = [-1] * count
    cluster = 0
    while True:
        free = [label == -1 for label in labels]
        allowed = [
            [similarity[i][j] if free[i] and free[j] and i != j else 0.0 for j in range(count)]
            for i in range(count)
        ]
        members = dominant_set(allowed, free)
        if len(members) < 4:
            return labels
        eps = max(sorted(apart[i][j] for j in members if j != i)[2] for i in members)
        queue = sorted(members)
        for i in queue:
            labels[i] = cluster
        while queue:
            i = queue.pop()
            near = [j for j in range(count) if apart[i][j] <= eps]
            if len(near) >= 4:
                for j in near:
                    if labels[j] == -1:
                        labels[j] = cluster
                        queue.append(j)
        cluster += 1
        if labels.count(-1) < 5:
            return labels


def purity(labels: list[int], truth: list[int]) -> float:
    total = 0
    for group in set(labels):
        kinds = [kind for label, kind in zip(labels, truth, strict=True) if label == group]
        total += max(kinds.count(kind) for kind in kinds)
    return total / len(labels)


def nmi(labels: list[int], truth: list[int]) -> float:
    def share(test) -> float:
        return sum(test(a, b) for a, b in zip(labels, truth, strict=True)) / len(labels)

    information = group_entropy = kind_entropy = 0.0
    for group in set(labels):
        for kind in set(truth):
            both = share(lambda a, b, group=group, kind=kind: a == group and b == kind)
            if both:
                alone = share(lambda a, _, group=group: a == group) * share(lambda _, b, kind=kind: b == kind)
                information += both * math.log(both / alone)
    for group in set(labels):
        p = share(lambda a, _, group=group: a == group)
        group_entropy -= p * math.log(p)
    for kind in set(truth):
        p = share(lambda _, b, kind=kind: b == kind)
        kind_entropy -= p * math.log(p)
    if len(set(labels)) == len(set(truth)) == 1:
        return 1.0
    return information / ((group_entropy + kind_entropy) / 2)
