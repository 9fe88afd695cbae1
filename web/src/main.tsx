import { render } from "preact";

import { Page } from "./page";
import { session } from "./state/session";
import { titleCells } from "./ui/tables";
import "./ui/tokens.css";
import "./ui/components.css";
import "./ui/tables.css";

titleCells();
void session.begin();
render(<Page />, document.getElementById("page")!);
