"""What a page is made with (docs/extend/dashboard-pages.md).

Page, needs          an area of pages: its place in the navigation, and the right that it takes
api, may, render     the service in the name of who asks; what they may; HTML
Act, Field           something that is done: told before, confirmed, told afterwards
keep_draft, drafted  what is written on one page and done on the next
Table, Column        rows: sorted, paged and with chosen columns, by the server
badges, charts, diff, when    values as people read them
"""

from attestation_web.login.current import api, may, whoami
from attestation_web.page.acting import Act, Field, Values, one_of_several
from attestation_web.page.area import Page, needs, now, render
from attestation_web.page.badges import Badge
from attestation_web.page.charts import bar, donut
from attestation_web.page.diff import lines_of
from attestation_web.page.drafts import change_draft, draft_of, drafted, keep_draft
from attestation_web.page.table import Column, Table, table

__all__ = [
    "Act",
    "Badge",
    "Column",
    "Field",
    "Page",
    "Table",
    "Values",
    "api",
    "bar",
    "change_draft",
    "donut",
    "draft_of",
    "drafted",
    "keep_draft",
    "lines_of",
    "may",
    "needs",
    "now",
    "one_of_several",
    "render",
    "table",
    "whoami",
]
