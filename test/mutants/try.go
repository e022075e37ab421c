// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
)

// outcome is what became of a mutant.
type outcome struct {
	mutant Mutant
	killer string // "" if it survives
	// byWhole is set if a suite that is run as a whole killed it.
	byWhole bool
	reached bool
}

// tryAll tries mutants, several at a time.
func (c *config) tryAll(ctx context.Context, mutants []Mutant) ([]outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	outcomes := make([]outcome, len(mutants))
	next := make(chan int)
	var group sync.WaitGroup
	for range c.workers {
		group.Go(func() {
			for n := range next {
				var err error
				if outcomes[n], err = c.tryMutant(ctx, mutants[n]); err != nil {
					cancel(err)
				}
			}
		})
	}
	for n := range mutants {
		if ctx.Err() != nil {
			break
		}
		if n%100 == 0 {
			c.log("%d of %d mutants were begun", n, len(mutants))
		}
		next <- n
	}
	close(next)
	group.Wait()
	return outcomes, context.Cause(ctx)
}

// tryMutant tries a mutant with the suites, its own package's first, until one kills it.
func (c *config) tryMutant(ctx context.Context, m Mutant) (outcome, error) {
	o := outcome{mutant: m}
	for _, s := range c.suitesFor(m) {
		o.reached = o.reached || slices.ContainsFunc(s.tests, func(t test) bool { return t.reaches[m.Number] })
		killer, err := c.try(ctx, s, m)
		if err != nil || killer != "" {
			o.killer, o.byWhole = killer, s.whole != nil
			return o, err
		}
	}
	c.log("survives: %s:%d: %s", m.File, m.Line, m)
	return o, nil
}

func (c *config) suitesFor(m Mutant) (ordered []*suite) {
	for n := range c.suites {
		ordered = append(ordered, &c.suites[n])
	}
	own := filepath.Dir(m.File)
	slices.SortStableFunc(ordered, func(a, b *suite) int { return rank(a, own) - rank(b, own) })
	return ordered
}

// rank orders the suites for a mutant.
func rank(s *suite, own string) int {
	switch {
	case s.folder == own:
		return 0
	case s.whole == nil:
		return 1
	default:
		return 2
	}
}

// log prints how far it is.
func (c *config) log(format string, values ...any) {
	if c.progress != nil {
		_, _ = fmt.Fprintf(c.progress, format+"\n", values...)
	}
}
