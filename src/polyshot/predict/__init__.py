"""From support sets to answers: rules, read-outs and adaptations."""
