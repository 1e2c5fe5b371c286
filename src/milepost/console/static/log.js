// The log and the filter playground: what is typed is checked at once, what is appended arrives.
import { beginChecks } from "./checks.js";
import { beginPlayground } from "./playground.js";
import { beginTail } from "./tail.js";

beginChecks();
beginPlayground();
beginTail();
