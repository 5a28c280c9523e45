"""The agent as a system extension of Talos, built without a daemon, the same bytes from the same inputs.

    build.py          the whole of it, in order
    interpreter.py    the Python that goes in: what it is, and the files of it that the agent needs
    wheels.py         the agent and what it depends on, each wheel by a hash that was given
    elf.py            what a compiled file asks of the system; pure
    libraries.py      the shared libraries that are therefore needed
    compiled.py       modules as code objects
    documents.py      manifest.yaml and the service's file
    image.py          one layer and what describes it, as an OCI layout

Facts of Talos: `extension services` of its documentation, and the specification of services in siderolabs/talos.
"""
