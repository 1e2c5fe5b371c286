// Everything that a page needs: each module looks for what concerns it.
import { beginTimes } from "./times.js";
import { beginTheme } from "./theme.js";
import { beginFilters } from "./filters.js";
import { beginDialogs } from "./dialogs.js";
import { beginSelection } from "./selection.js";
import { beginPlans } from "./plans.js";
import { beginLive } from "./live.js";
import { beginAgain } from "./again.js";

beginTimes();
beginTheme();
beginFilters();
beginDialogs();
beginSelection();
beginPlans();
beginLive();
beginAgain();
