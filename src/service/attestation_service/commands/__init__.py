"""What operators of the host ask of `attestation-service` besides serving: a module for each command.

Each has one function `run(settings, options)`, which returns the exit status. It is imported when it is asked for.

parser.py     the words of all of them
db_status.py db_check.py db_upgrade.py
               the database as it is, and its schema
doctor.py      the whole installation; --check
telling.py     what doctor and db check found
db_copy.py     another database
backup.py restore.py manifest.py
carrying.py    what copies and backups do alike; progress.py  how far they are
"""
