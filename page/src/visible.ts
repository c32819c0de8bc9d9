// Makes control and bidirectional characters of a model's text visible.
export interface Span {
  text: string;
  isHidden: boolean; // a character that would show nothing, or turn its surroundings round
}

// C0 without tab, newline and return; C1; marks of direction; zero widths; tags; private use.
const HIDDEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ue000-\uf8ff]|[\u{e0000}-\u{e007f}]/gu;

export function splitVisible(text: string): Span[] {
  const spans: Span[] = [];
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > end) spans.push({ text: text.slice(end, match.index), isHidden: false });
    spans.push({ text: nameCharacter(match[0]), isHidden: true });
    end = match.index + match[0].length;
  }
  if (end < text.length) spans.push({ text: text.slice(end), isHidden: false });
  return spans;
}

/** Returns text in which such characters are written out, for labels and titles. */
export function showPlain(text: string): string {
  return splitVisible(text)
    .map((span) => span.text)
    .join("");
}

function nameCharacter(character: string): string {
  const code = character.codePointAt(0)!;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code); // such as ␛
  if (code === 0x7f) return "␡";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
