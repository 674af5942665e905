// The lines in which two texts differ: the longest common subsequence, between the lines that both begin and end with.

const MOST = 4_000_000;

/** Lines as [mark, line], the mark "-" where the first text alone has it, "+" where the second alone has it, else " ";
 *  null for texts that differ in too many lines to be compared. */
export function linesOf(a, b) {
  const [left, right] = [a.split('\n'), b.split('\n')];
  let first = 0;
  while (first < left.length && first < right.length && left[first] === right[first]) first += 1;
  let [end, other] = [left.length, right.length];
  while (end > first && other > first && left[end - 1] === right[other - 1]) [end, other] = [end - 1, other - 1];
  const [rows, columns] = [end - first, other - first];
  if (rows * columns > MOST) return null;
  const width = columns + 1;
  const common = new Uint32Array((rows + 1) * width);
  for (let i = rows - 1; i >= 0; i -= 1) {
    for (let j = columns - 1; j >= 0; j -= 1) {
      const same = left[first + i] === right[first + j];
      common[i * width + j] = same ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const found = left.slice(0, first).map((line) => [' ', line]);
  let [i, j] = [0, 0];
  while (i < rows || j < columns) {
    if (i < rows && j < columns && left[first + i] === right[first + j]) found.push([' ', left[first + i++], j++]);
    else if (j >= columns || (i < rows && common[(i + 1) * width + j] >= common[i * width + j + 1])) found.push(['-', left[first + i++]]);
    else found.push(['+', right[first + j++]]);
  }
  return [...found, ...left.slice(end).map((line) => [' ', line])];
}
