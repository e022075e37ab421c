// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package purge removes the servers of an installation that does not run.
// Start with Find, which looks, and Found.Remove, which acts.
package purge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
)

const (
	askTimeout = 30 * time.Second
	// removeTimeout is one server's.
	removeTimeout = 2 * time.Minute
	pollPeriod    = 200 * time.Millisecond
	// atOnce is how many servers are removed at a time.
	atOnce = 16
)

// Engine is what purge needs of a driver.
type Engine interface {
	List(ctx context.Context, uids ...types.UID) ([]driver.Server, error)
	Delete(ctx context.Context, t driver.Target, retain bool) error
}

// Named is an engine with the name people know it by.
type Named struct {
	Name   string
	Engine Engine
	// Doubt is why it means nothing that the engine has no servers; nil where it does.
	Doubt error
}

// Found is what there is to remove.
type Found struct {
	servers []found
	// Released servers were let go of on purpose and stay.
	Released int
	// Doubt is why there may be servers on engines that could not be asked, or nil.
	Doubt error
}

type found struct {
	driver.Server
	in Named
}

// Find lists the servers on all engines. An engine that does not answer is an
// error: servers may be on it.
func Find(ctx context.Context, engines []Named) (*Found, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	all, met := &Found{}, map[driver.Target]error{}
	for _, e := range engines {
		servers, err := e.Engine.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("driver %s cannot tell its servers: %w", e.Name, err)
		}
		if len(servers) == 0 {
			all.Doubt = errors.Join(all.Doubt, e.Doubt)
		}
		for _, s := range servers {
			all.add(found{s, e}, met)
		}
	}
	return all, nil
}

// add leaves out what an engine shows that is kept both with its id and, in doubt,
// without. met has the doubts of the servers so far.
func (f *Found) add(s found, met map[driver.Target]error) {
	target := driver.Target{UID: s.UID, ID: s.ID}
	doubt, again := met[target]
	met[target] = s.in.Doubt
	switch {
	case again && (doubt != nil || s.in.Doubt != nil):
	case s.Retained:
		f.Released++
	default:
		f.servers = append(f.servers, s)
	}
}

// Count of the servers that Remove removes.
func (f *Found) Count() int { return len(f.servers) }

// Print shows them.
func (f *Found) Print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if len(f.servers) > 0 {
		_, _ = fmt.Fprintln(table, "DRIVER\tNAMESPACE\tNAME\tSTATE\tID")
	}
	for _, s := range f.servers {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", s.in.Name, s.Namespace, s.Name, s.State, s.ID)
	}
	return table.Flush()
}

// Remove removes the servers, several at a time, and returns once none is left. It
// goes on past one that cannot be removed.
func (f *Found) Remove(ctx context.Context, c clock.WithTicker) error {
	errs := make([]error, len(f.servers))
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i, s := range f.servers {
		all.Go(func() error {
			if err := s.remove(ctx, c); err != nil {
				errs[i] = fmt.Errorf("%s server of %s/%s: %w", s.in.Name, s.Namespace, s.Name, err)
			}
			return nil
		})
	}
	_ = all.Wait()
	return errors.Join(errs...)
}

// remove asks again until the driver says that nothing is left, as its contract
// has it.
func (s *found) remove(ctx context.Context, c clock.WithTicker) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	ticker := c.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		err := s.in.Engine.Delete(ctx, driver.Target{UID: s.UID, ID: s.ID}, false)
		if errors.Is(err, driver.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not gone within %s", removeTimeout)
		case <-ticker.C():
		}
	}
}
