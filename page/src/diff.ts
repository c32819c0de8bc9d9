// Compares two texts word by word.
export interface Piece {
  kind: "same" | "removed" | "added";
  text: string;
}

const MOST_CELLS = 4_000_000; // of the table that finds the longest common words

/** Returns what became of a text: words that stayed, went and came. */
export function diffWords(before: string, after: string): Piece[] {
  const old = splitWords(before);
  const now = splitWords(after);
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start++;
  let end = 0;
  while (
    end < old.length - start &&
    end < now.length - start &&
    old[old.length - 1 - end] === now[now.length - 1 - end]
  )
    end++;
  const pieces: Piece[] = [];
  add(pieces, "same", old.slice(0, start));
  compareMiddle(pieces, old.slice(start, old.length - end), now.slice(start, now.length - end));
  add(pieces, "same", old.slice(old.length - end));
  return pieces;
}

function splitWords(text: string): string[] {
  return text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];
}

function compareMiddle(pieces: Piece[], old: string[], now: string[]): void {
  const width = now.length + 1;
  if ((old.length + 1) * width > MOST_CELLS) {
    add(pieces, "removed", old);
    add(pieces, "added", now);
    return;
  }
  const common = new Uint16Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      common[i * width + j] =
        old[i] === now[j]
          ? common[(i + 1) * width + j + 1]! + 1
          : Math.max(common[(i + 1) * width + j]!, common[i * width + j + 1]!);
    }
  }
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      add(pieces, "same", [old[i]!]);
      i++;
      j++;
    } else if (j >= now.length || (i < old.length && goesFirst(common, i, j, width))) {
      add(pieces, "removed", [old[i++]!]);
    } else add(pieces, "added", [now[j++]!]);
  }
}

function goesFirst(common: Uint16Array, i: number, j: number, width: number): boolean {
  return common[(i + 1) * width + j]! >= common[i * width + j + 1]!;
}

function add(pieces: Piece[], kind: Piece["kind"], words: string[]): void {
  if (!words.length) return;
  const last = pieces[pieces.length - 1];
  if (last?.kind === kind) last.text += words.join("");
  else pieces.push({ kind, text: words.join("") });
}
