"""The blob store from an operator's side: what it holds, which records hold on to it, and what may go."""
