/**
 * Match the regular expressions of elmo's tokenizers exactly as Python does.
 *
 * The regular expressions of JavaScript have no possessive repeats, and other Unicode tables than Python. Python
 * therefore exports a pattern as a tree (`elmo.serve.export_text.export_pattern`), and this module matches the tree.
 *
 * All characters that the pattern does not distinguish form a class; a set of characters is a set of classes. A text
 * is matched as an array of the classes of its characters, so a test of a character is one lookup in a table.
 *
 * Nodes of a tree:
 *
 *   ["set", number]                          a character of a set
 *   ["sequence", nodes]                      nodes, one after the other
 *   ["or", nodes]                            the first node that matches
 *   ["repeat", kind, low, high, node]        "greedy", "lazy" or "possessive"; high is null if there is no limit
 *   ["look", width, isNegated, node]         a condition on the text that follows, or on `width` > 0 characters before
 *   ["atomic", node]                         no second try inside the node
 *   ["group", number, node]                  a group, whose position is reported
 *   ["same", number]                         the same text as a group
 *
 * @typedef {[string, ...any]} PatternNode
 * @typedef {Object} PatternData
 * @property {PatternNode} tree
 * @property {number[][]} sets      the classes of each set
 * @property {number[]} ends        ends of ranges of code points, in order
 * @property {number[]} classes     the class of each range
 * @property {Object<string, number>} groups  the numbers of the named groups
 *
 * @typedef {(position: number) => number} Matcher  returns the end of the match, or -1
 *
 * @typedef {(start: number, end: number, groupEnd: number) => void} Report  `groupEnd` is the end of the named group,
 *     or -1 if it is not part of the match
 */

const N_CODE_POINTS = 0x110000;
const N_CLASSES = 256;
const END = 255; // the class after the last character, which is in no set

/**
 * Compile a pattern.
 *
 * @param {PatternData} data
 * @returns {(points: Int32Array, report: Report, group?: string) => void}  a function that reports all matches in a
 *     text, which is an array of code points; the reports include the end of the named group, if there is one
 */
export function compilePattern(data) {
  const classOf = expandClasses(data);
  const sets = data.sets.map(buildSet);

  // the text that is being matched, and the start and end of each group
  let points = new Int32Array(0);
  let classes = new Uint8Array(0);
  const nGroups = 1 + Math.max(0, ...Object.values(data.groups));
  const groupStarts = new Int32Array(nGroups);
  const groupEnds = new Int32Array(nGroups);

  /**
   * Compile a node, followed by the rest of the pattern. A matcher returns the end of the match of both.
   *
   * @param {PatternNode} node
   * @param {Matcher} next
   * @returns {Matcher}
   */
  function compile(node, next) {
    switch (node[0]) {
      case "set": {
        const set = sets[node[1]];
        return (i) => (set[classes[i]] ? next(i + 1) : -1);
      }
      case "sequence":
        return node[1].reduceRight((rest, child) => compile(child, rest), next);
      case "or":
        return compileAlternatives(node[1], next);
      case "repeat": {
        const [, kind, low, high, child] = node;
        const limit = high ?? Infinity;
        if (kind === "possessive") return compilePossessive(child, low, limit, next);
        if (child[0] !== "set") return unrollRepeat(child, low, limit, kind === "lazy", next);
        const compileSet = kind === "lazy" ? compileLazy : compileGreedy;
        return compileSet(sets[child[1]], low, limit, next);
      }
      case "look": {
        const [, width, isNegated, child] = node;
        const condition = compile(child, (i) => i);
        return (i) => {
          const holds = i >= width && condition(i - width) >= 0;
          return holds === isNegated ? -1 : next(i);
        };
      }
      case "atomic": {
        const body = compile(node[1], (i) => i);
        return (i) => {
          const end = body(i);
          return end < 0 ? -1 : next(end);
        };
      }
      case "group":
        return compileGroup(node[1], node[2], next);
      case "same": {
        const number = node[1];
        return (i) => {
          if (groupEnds[number] < 0) return -1;
          let k = i;
          for (let j = groupStarts[number]; j < groupEnds[number]; j++, k++) {
            if (k >= points.length || points[k] !== points[j]) return -1;
          }
          return next(k);
        };
      }
      default:
        throw new RangeError(`pattern: unknown node ${JSON.stringify(node[0])}; export the data again`);
    }
  }

  /** Try only the alternatives that can start with the next character. */
  function compileAlternatives(nodes, next) {
    const matchers = nodes.map((node) => compile(node, next));
    const starts = nodes.map((node) => {
      const { set, isEmpty } = findStarts(node, sets);
      return isEmpty ? new Uint8Array(N_CLASSES).fill(1) : set;
    });
    const choices = Array.from({ length: N_CLASSES }, (_, number) => matchers.filter((_, k) => starts[k][number]));
    return (i) => {
      const candidates = choices[classes[i]];
      for (let k = 0; k < candidates.length; k++) {
        const end = candidates[k](i);
        if (end >= 0) return end;
      }
      return -1;
    };
  }

  function compilePossessive(child, low, high, next) {
    if (child[0] === "set") {
      const set = sets[child[1]];
      return (i) => {
        let end = i;
        while (end - i < high && set[classes[end]]) end++;
        return end - i < low ? -1 : next(end);
      };
    }
    const body = compile(child, (i) => i);
    return (i) => {
      let end = i;
      for (let n = 0; n < high; n++) {
        const after = body(end);
        if (after < 0 && n < low) return -1;
        if (after < 0 || (after === end && n >= low)) break;
        end = after;
      }
      return next(end);
    };
  }

  function compileGreedy(set, low, high, next) {
    return (i) => {
      let last = i;
      while (last - i < high && set[classes[last]]) last++;
      for (let start = last; start - i >= low; start--) {
        const end = next(start);
        if (end >= 0) return end;
      }
      return -1;
    };
  }

  function compileLazy(set, low, high, next) {
    return (i) => {
      for (let start = i; start - i <= high; start++) {
        if (start - i >= low) {
          const end = next(start);
          if (end >= 0) return end;
        }
        if (!set[classes[start]]) return -1;
      }
      return -1;
    };
  }

  /** Compile a bounded repeat as nested optional nodes: x{1,3} as x(x(x)?)?. */
  function unrollRepeat(child, low, high, isLazy, next) {
    let rest = next;
    for (let n = high; n > 0; n--) {
      const more = compile(child, rest);
      if (n <= low) rest = more;
      else rest = isLazy ? firstOf(next, more) : firstOf(more, next);
    }
    return rest;
  }

  function compileGroup(number, child, next) {
    const body = compile(child, (i) => {
      const previous = groupEnds[number];
      groupEnds[number] = i;
      const end = next(i);
      if (end < 0) groupEnds[number] = previous;
      return end;
    });
    return (i) => {
      const previous = groupStarts[number];
      groupStarts[number] = i;
      const end = body(i);
      if (end < 0) groupStarts[number] = previous;
      return end;
    };
  }

  const match = compile(data.tree, (i) => i);

  return function findMatches(text, report, group) {
    points = text;
    classes = new Uint8Array(text.length + 1);
    for (let i = 0; i < text.length; i++) classes[i] = classOf[text[i]];
    classes[text.length] = END;
    const number = group === undefined ? 0 : data.groups[group];
    groupEnds.fill(-1);
    for (let i = 0; i < text.length; ) {
      const end = match(i);
      if (end > i) {
        report(i, end, groupEnds[number]);
        groupEnds.fill(-1);
        i = end;
      } else {
        i++;
      }
    }
  };
}

/** @returns {Matcher} */
function firstOf(first, second) {
  return (i) => {
    const end = first(i);
    return end >= 0 ? end : second(i);
  };
}

/** Return a table of the class of each code point. */
function expandClasses({ ends, classes }) {
  const table = new Uint8Array(N_CODE_POINTS);
  ends.forEach((end, k) => table.fill(classes[k], k ? ends[k - 1] : 0, end));
  return table;
}

function buildSet(classes) {
  const set = new Uint8Array(N_CLASSES);
  for (const number of classes) set[number] = 1;
  return set;
}

/**
 * Return the classes that the match of a node can start with, and whether the match can be empty.
 *
 * @param {PatternNode} node
 * @param {Uint8Array[]} sets
 * @returns {{set: Uint8Array, isEmpty: boolean}}
 */
function findStarts(node, sets) {
  const nothing = new Uint8Array(N_CLASSES);
  switch (node[0]) {
    case "set":
      return { set: sets[node[1]], isEmpty: false };
    case "atomic":
      return findStarts(node[1], sets);
    case "group":
      return findStarts(node[2], sets);
    case "repeat": {
      const { set, isEmpty } = findStarts(node[4], sets);
      return { set, isEmpty: isEmpty || node[2] === 0 };
    }
    case "or": {
      const starts = node[1].map((child) => findStarts(child, sets));
      return { set: unite(starts.map(({ set }) => set)), isEmpty: starts.some(({ isEmpty }) => isEmpty) };
    }
    case "sequence": {
      const parts = [];
      for (const child of node[1]) {
        const { set, isEmpty } = findStarts(child, sets);
        parts.push(set);
        if (!isEmpty) return { set: unite(parts), isEmpty: false };
      }
      return { set: unite(parts), isEmpty: true };
    }
    default: // a condition, or the text of a group, which can be empty: any character can follow
      return { set: nothing, isEmpty: true };
  }
}

function unite(sets) {
  return Uint8Array.from({ length: N_CLASSES }, (_, number) => (sets.some((set) => set[number]) ? 1 : 0));
}
