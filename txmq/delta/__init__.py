"""The one door to Delta: tables, their files and their logs. Nothing above knows delta-rs."""
