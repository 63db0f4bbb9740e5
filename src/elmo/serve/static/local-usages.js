// Words in sentences, as in elmo.embed.find and elmo.lexicon.usages: [[marks]], words and phrases. Spans are in UTF-16.
import { LocalError } from "./local-network.js";

/** A sentence of at most 60 characters, in quotes. */
export function excerpt(text) {
  return `'${text.length <= 60 ? text : `${text.slice(0, 59)}…`}'`;
}

function inputError(message) {
  return new LocalError(message, { code: "invalid_input" });
}

/** Remove the mark [[ ]] of a sentence: {text, span}; span is null without a mark. */
export function parseMark(sentence, number) {
  let text = "", position = 0;
  const spans = [];
  for (const match of sentence.matchAll(/\[\[(.*?)\]\]/gsu)) {
    if (!match[1].trim()) {
      throw inputError(`sentence ${number}: a mark [[ ]] must contain a word; found an empty mark in ${excerpt(sentence)}`);
    }
    text += sentence.slice(position, match.index);
    spans.push([text.length, text.length + match[1].length]);
    text += match[1];
    position = match.index + match[0].length;
  }
  if (spans.length > 1) {
    throw inputError(`sentence ${number}: only one word may be marked by [[ ]]; found ${spans.length} in ${excerpt(sentence)}`);
  }
  return { text: text + sentence.slice(position), span: spans[0] ?? null };
}

/** The first match of a word; whole tokens come before parts of tokens, the same case before other cases. */
export function findWord(word, text, offsets) {
  const [wholeSame, partsSame] = findPhrase(word, text, offsets, "gsu");
  const [wholeAny, partsAny] = findPhrase(word, text, offsets, "gsui");
  return [wholeSame, wholeAny, partsSame, partsAny].find((spans) => spans.length)?.[0] ?? null;
}

function findPhrase(phrase, text, offsets, flags) {
  const pattern = phrase.trim().split(/\s+/u).map((part) => part.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("\\s+");
  const begins = new Set(offsets.map(([begin]) => begin)), ends = new Set(offsets.map(([, end]) => end));
  const whole = [], parts = [];
  if (!pattern) return [whole, parts];
  for (const match of text.matchAll(new RegExp(`(?=(${pattern}))`, flags))) { // a lookahead finds overlapping matches
    const begin = match.index, end = begin + match[1].length;
    if (begins.has(begin) && ends.has(end)) whole.push([begin, end]);
    else if (!isInsideWord(text, begin) && !isInsideWord(text, end)) parts.push([begin, end]);
  }
  return [whole, parts];
}

const IS_CASED = /^(?!\p{Lo})[\p{L}\p{N}]$/u;

function isInsideWord(text, position) {
  if (position <= 0 || position >= text.length) return false;
  const before = text.slice(0, position).match(/.$/su)[0], after = text.slice(position).match(/^./su)[0];
  return /^\p{Mn}$/u.test(after) || (IS_CASED.test(before) && IS_CASED.test(after));
}

/** The tokens that overlap a span of characters as [begin, end]; null if there are none. */
export function tokensAt(offsets, [begin, end]) {
  const first = offsets.findIndex(([a, b]) => a < end && b > begin);
  if (first < 0) return null;
  let last = first;
  while (last + 1 < offsets.length && offsets[last + 1][0] < end && offsets[last + 1][1] > begin) last++;
  return [first, last + 1];
}

export function joinedOffsets(tokens) {
  let begin = 0;
  return tokens.map((token) => {
    const span = [begin, begin + token.length];
    begin += token.length + 1;
    return span;
  });
}

/**
 * The usage of a marked word or, without a mark, the first usage of `word`.
 *
 * @returns {{tokens: string[], offsets: [number, number][] | null, text: string, begin: number, end: number,
 *     span: [number, number]}}  `span` has the characters of the usage, `begin` and `end` its tokens
 */
export function findUsage(network, sentence, word, number = 1) {
  let text, span = null;
  if (typeof sentence === "string") ({ text, span } = parseMark(sentence, number));
  const { tokens, offsets } = network.tokenize(text ?? sentence);
  text ??= tokens.join(" ");
  const places = offsets ?? joinedOffsets(tokens);
  if (!span) {
    if (!word?.trim()) throw inputError(`sentence ${number}: no word is marked; mark one like [[this]]: ${excerpt(text)}`);
    span = findWord(word, text, places);
  }
  if (!span) {
    throw inputError(`sentence ${number}: '${word.slice(0, 40)}' does not occur in ${excerpt(text)}; mark the word like [[this]]`);
  }
  const inside = tokensAt(places, span);
  if (!inside) throw inputError(`sentence ${number}: expected a word between [[ and ]], found '${text.slice(...span).slice(0, 40)}'`);
  const [begin, end] = inside;
  return { tokens, offsets, text, begin, end, marked: span, span: [places[begin][0], places[end - 1][1]] };
}
