import { render } from "preact";

import { Page } from "./page";
import { session } from "./state/session";
import "./ui/tokens.css";
import "./ui/components.css";

void session.begin();
render(<Page />, document.getElementById("page")!);
