// Keeps all state of the page in its address, and follows links without loading the page anew.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  view: string; // "" is the list of runs
  query: URLSearchParams;
}

export type Changes = Record<string, string | number | null | undefined>;

const watchers = new Set<() => void>();
const scrolls = new Map<string, number>(); // address -> how far it was scrolled
let newest = 0; // number of the newest address in the history of this tab

export function readRoute(): Route {
  const view = location.pathname.split("/").pop() ?? "";
  return { view, query: new URLSearchParams(location.search) };
}

export function useRoute(): Route {
  const [route, setRoute] = useState(readRoute);
  useEffect(() => {
    const update = (): void => setRoute(readRoute());
    watchers.add(update);
    return () => void watchers.delete(update);
  }, []);
  return route;
}

/** Returns an address such as "talk?run=math&step=3", without what has no value. */
export function writeHref(view: string, query: Changes): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") parameters.set(name, String(value));
  }
  const text = parameters.toString();
  return (view || "./") + (text ? `?${text}` : "");
}

export function navigate(href: string, how: "push" | "replace" = "push"): void {
  scrolls.set(readKey(), window.scrollY);
  if (how === "push") history.pushState({ key: ++newest }, "", href);
  else history.replaceState(history.state, "", href);
  announce();
  if (how === "push") window.scrollTo(0, 0);
}

/** Changes some values of the address: "replace" for what is typed or stepped through. */
export function setQuery(changes: Changes, how: "push" | "replace" = "replace"): void {
  const { view, query } = readRoute();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, String(value));
  }
  const text = query.toString();
  const href = (view || "./") + (text ? `?${text}` : "");
  if (how === "push") {
    const top = window.scrollY;
    navigate(href, "push");
    window.scrollTo(0, top); // a tab of the same view
  } else navigate(href, "replace");
}

/** Starts to follow clicks on links and the browser's back and forward. */
export function startRouter(): void {
  history.scrollRestoration = "manual";
  newest = Number((history.state as { key?: number } | null)?.key ?? 0);
  history.replaceState({ key: newest }, "");
  window.addEventListener("popstate", () => {
    announce();
    restoreScroll(scrolls.get(readKey()) ?? 0);
  });
  document.addEventListener("click", followClick);
}

function followClick(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = (event.target as Element).closest("a");
  const href = link?.getAttribute("href");
  if (!link || !href || link.hasAttribute("download") || href.startsWith("#")) return;
  const url = new URL(href, document.baseURI);
  if (url.origin !== location.origin) return;
  event.preventDefault();
  if (url.href !== location.href) navigate(url.href);
}

function readKey(): string {
  return String((history.state as { key?: number } | null)?.key ?? 0);
}

function announce(): void {
  for (const update of [...watchers]) update();
}

/** Scrolls as soon as the page is tall enough again, for at most a second. */
function restoreScroll(top: number, until = performance.now() + 1000): void {
  window.scrollTo(0, top);
  const isThere = Math.abs(window.scrollY - top) < 2;
  if (!isThere && performance.now() < until) requestAnimationFrame(() => restoreScroll(top, until));
}
