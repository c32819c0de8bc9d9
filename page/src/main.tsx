// Starts the page.
import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "../../src/rolecall/monitor/theme.css";
import "./style.css";
import { App } from "./app";
import { startKeys } from "./keys";
import { startRouter } from "./router";

startRouter();
startKeys();
render(<App />, document.getElementById("page")!);
