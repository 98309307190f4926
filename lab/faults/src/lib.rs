//! Seeded plans of faults, what carries them out, and a proxy that delays.
