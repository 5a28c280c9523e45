"""Commands of the extensions: plug-ins of the command line, which need neither service nor database."""
