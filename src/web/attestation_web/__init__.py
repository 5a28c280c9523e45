"""The dashboard: pages over the API of the service, for people who never see a terminal.

main        the program
app         the application: what every request passes
pages/      one file for each area of pages; each may be deleted without another noticing
page/       what a page is made with: api(), render(), Act, Table, macros
login/      who is here: OpenID Connect, sessions on the server
border/     headers, forged requests, bodies
logs        what is logged
settings    what was set
"""
