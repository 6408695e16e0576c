/** From the files that somebody drops to what is sent. */

// The model gets a small centre crop anyway; sending whole photos at each move of the
// slider would only make the page slow, and 64 of them would be more than a request may hold.
// The page says so (files-note): the server's own preprocessing of the whole file differs a little.
const SEND_AS_IS = 128 * 1024;
const SIDE = 384;

/** Read a file as a data: URL, large photos scaled down. What is not an image is left for the server to refuse. */
export async function readFile(file) {
  const blob = file.size > SEND_AS_IS ? ((await scaledDown(file)) ?? file) : file;
  return dataUrl(blob);
}

async function scaledDown(file) {
  try {
    const bitmap = await createImageBitmap(file);
    const square = Math.min(bitmap.width, bitmap.height);
    const side = Math.min(SIDE, square);
    const [left, top] = [(bitmap.width - square) / 2, (bitmap.height - square) / 2];
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = side;
    const context = canvas.getContext("2d");
    context.fillStyle = "white"; // under what is transparent, as the server does it
    context.fillRect(0, 0, side, side);
    context.imageSmoothingQuality = "high";
    context.drawImage(bitmap, left, top, square, square, 0, 0, side, side);
    bitmap.close();
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  } catch {
    return null; // a format that the browser cannot decode
  }
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.includes(",") ? reader.result : "data:,");
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
