"""One file for each area of pages (docs/extend/dashboard-pages.md); what lies here is found and shown."""
