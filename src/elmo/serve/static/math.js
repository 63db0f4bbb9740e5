// Numbers behind the charts: similarities, positions on a map, groups. Everything is deterministic: the same input
// gives the same output in every browser and run.

/** Cosine of two vectors; 0 if one of them is zero. */
export function cosine(a, b) {
  let dot = 0, aa = 0, bb = 0;
  for (let k = 0; k < a.length; k++) {
    dot += a[k] * b[k];
    aa += a[k] * a[k];
    bb += b[k] * b[k];
  }
  return aa && bb ? Math.max(-1, Math.min(1, dot / Math.sqrt(aa * bb))) : 0;
}

/** Matrix of the cosines of all pairs of vectors. */
export function similarityMatrix(vectors) {
  const n = vectors.length;
  const matrix = Array.from({ length: n }, () => new Array(n).fill(1));
  for (let i = 0; i < n; i++) {
    for (let j = i + 1; j < n; j++) matrix[i][j] = matrix[j][i] = cosine(vectors[i], vectors[j]);
  }
  return matrix;
}

/** Mean of vectors of the same length. */
export function meanVector(vectors) {
  const mean = new Float64Array(vectors[0].length);
  for (const vector of vectors) for (let k = 0; k < mean.length; k++) mean[k] += vector[k] / vectors.length;
  return mean;
}

/**
 * Eigenvalues (descending) and eigenvectors of a symmetric matrix, by Jacobi rotations in a fixed order.
 * The result is {values, vectors}; vectors[k] belongs to values[k].
 */
export function symmetricEigen(matrix) {
  const n = matrix.length;
  const a = matrix.map((row) => Float64Array.from(row));
  const v = Array.from({ length: n }, (_, i) => Float64Array.from({ length: n }, (_, j) => (i === j ? 1 : 0)));
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) off += a[i][j] * a[i][j];
    if (off < 1e-22) break;
    for (let p = 0; p < n; p++) {
      for (let q = p + 1; q < n; q++) {
        if (Math.abs(a[p][q]) < 1e-15) continue;
        const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
        const c = 1 / Math.sqrt(t * t + 1), s = t * c;
        for (let k = 0; k < n; k++) {
          const x = a[k][p], y = a[k][q];
          a[k][p] = c * x - s * y;
          a[k][q] = s * x + c * y;
        }
        for (let k = 0; k < n; k++) {
          const x = a[p][k], y = a[q][k];
          a[p][k] = c * x - s * y;
          a[q][k] = s * x + c * y;
        }
        for (let k = 0; k < n; k++) {
          const x = v[k][p], y = v[k][q];
          v[k][p] = c * x - s * y;
          v[k][q] = s * x + c * y;
        }
      }
    }
  }
  const order = Array.from({ length: n }, (_, k) => k).sort((i, j) => a[j][j] - a[i][i] || i - j);
  return { values: order.map((k) => a[k][k]), vectors: order.map((k) => v.map((row) => row[k])) };
}

/**
 * Positions [x, y] of items by classical multidimensional scaling of their similarities (cosines).
 * Distances approximate the distances of the unit vectors: d² = 2 (1 − cosine). The first item that is not in the
 * center is on the left (x < 0), and the first one that is not on the horizontal axis is above it (y < 0 on screen).
 */
export function mapPositions(similarities) {
  const n = similarities.length;
  if (n === 0) return [];
  const rows = similarities.map((row) => row.reduce((sum, value) => sum + value, 0) / n);
  const all = rows.reduce((sum, value) => sum + value, 0) / n;
  const gram = similarities.map((row, i) => row.map((value, j) => value - rows[i] - rows[j] + all));
  const { values, vectors } = symmetricEigen(gram);
  const axes = [0, 1].map((k) => {
    const scale = Math.sqrt(Math.max(0, values[k] ?? 0));
    if (scale < 1e-6) return new Array(n).fill(0);
    const axis = vectors[k].map((value) => value * scale);
    const first = axis.find((value) => Math.abs(value) > 1e-6) ?? 0;
    return first > 0 ? axis.map((value) => -value) : axis;
  });
  return Array.from({ length: n }, (_, i) => [axes[0][i], axes[1][i]]);
}

/**
 * Rotate and reflect positions such that they are as near as possible to a reference (orthogonal Procrustes).
 * Distances do not change. Both lists have the same length; the result is centered as the reference is.
 */
export function alignPositions(positions, reference) {
  const n = positions.length;
  if (n === 0) return [];
  const center = (points) => [0, 1].map((k) => points.reduce((sum, point) => sum + point[k], 0) / n);
  const [px, py] = center(positions), [rx, ry] = center(reference);
  let xx = 0, xy = 0, yx = 0, yy = 0;
  for (let i = 0; i < n; i++) {
    const a = positions[i][0] - px, b = positions[i][1] - py;
    const c = reference[i][0] - rx, d = reference[i][1] - ry;
    xx += a * c;
    xy += a * d;
    yx += b * c;
    yy += b * d;
  }
  // The best rotation has the angle atan2(xy - yx, xx + yy); the best reflection atan2(xy + yx, xx - yy).
  const rotation = Math.hypot(xx + yy, xy - yx), reflection = Math.hypot(xx - yy, xy + yx);
  const flip = reflection > rotation + 1e-12;
  const angle = flip ? Math.atan2(xy + yx, xx - yy) : Math.atan2(xy - yx, xx + yy);
  const c = Math.cos(angle), s = Math.sin(angle), f = flip ? -1 : 1;
  return positions.map(([x, y]) => {
    const a = x - px, b = (y - py) * f;
    return [c * a - s * b + rx, s * a + c * b + ry];
  });
}

/**
 * Groups of items from their similarities: average linkage, and the number of groups with the largest mean
 * silhouette. Returns the group number of each item; all 0 if no division is clear.
 */
export function findGroups(similarities, { maxGroups = 6, minSilhouette = 0.25 } = {}) {
  const n = similarities.length;
  let best = new Array(n).fill(0), bestScore = minSilhouette;
  let clusters = Array.from({ length: n }, (_, i) => [i]);
  while (clusters.length > 2) {
    let pair = [0, 1], nearest = -Infinity;
    for (let a = 0; a < clusters.length; a++) {
      for (let b = a + 1; b < clusters.length; b++) {
        let sum = 0;
        for (const i of clusters[a]) for (const j of clusters[b]) sum += similarities[i][j];
        const mean = sum / (clusters[a].length * clusters[b].length);
        if (mean > nearest + 1e-12) [pair, nearest] = [[a, b], mean];
      }
    }
    const merged = [...clusters[pair[0]], ...clusters[pair[1]]].sort((i, j) => i - j);
    clusters = clusters.filter((_, k) => !pair.includes(k)).concat([merged]).sort((a, b) => a[0] - b[0]);
    if (clusters.length > maxGroups) continue;
    const labels = new Array(n);
    clusters.forEach((cluster, k) => cluster.forEach((i) => (labels[i] = k)));
    const score = meanSilhouette(similarities, labels, clusters.length);
    if (score > bestScore) [best, bestScore] = [labels, score];
  }
  return best;
}

function meanSilhouette(similarities, labels, k) {
  const n = labels.length;
  let total = 0;
  for (let i = 0; i < n; i++) {
    const sums = new Array(k).fill(0), counts = new Array(k).fill(0);
    for (let j = 0; j < n; j++) {
      if (j === i) continue;
      sums[labels[j]] += 1 - similarities[i][j];
      counts[labels[j]]++;
    }
    if (!counts[labels[i]]) continue; // the silhouette of a single item is 0
    const within = sums[labels[i]] / counts[labels[i]];
    let between = Infinity;
    for (let g = 0; g < k; g++) if (g !== labels[i] && counts[g]) between = Math.min(between, sums[g] / counts[g]);
    const larger = Math.max(within, between);
    if (larger > 1e-9) total += (between - within) / larger;
  }
  return total / n;
}
