// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package purge removes the servers of an installation that does not run.
// Start with Find, which lists the servers, and Found.Remove, which removes them.
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

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/standalone/internal/datadir"
)

const (
	// listTimeout is how long one engine may take to list its servers.
	listTimeout = 30 * time.Second
	// removeTimeout is how long the removal of one server may take.
	removeTimeout = 2 * time.Minute
	pollPeriod    = 200 * time.Millisecond
	// maxParallel is how many servers are removed at a time.
	maxParallel = 16
)

// Engine is the part of a driver that purge needs.
type Engine interface {
	List(ctx context.Context, uids ...types.UID) ([]driver.Server, error)
	Delete(ctx context.Context, t driver.Target, retain bool) error
}

// NamedEngine is an engine with the name that people use for it.
type NamedEngine struct {
	Name   string
	Engine Engine
	// Doubt says why an empty list from the engine does not prove that there are no
	// servers. It is nil if an empty list proves it.
	Doubt error
}

// Found is the set of servers to remove.
type Found struct {
	servers []foundServer
	// Released is the number of servers that were released on purpose, and stay.
	Released int
	// Doubt says why there may be servers on other engines than those that answered, or is nil.
	Doubt error
}

type foundServer struct {
	driver.Server
	engine NamedEngine
}

// Find lists the servers on all engines. It fails if an engine does not answer, because the
// engine may have servers.
func Find(ctx context.Context, engines []NamedEngine) (*Found, error) {
	all, seen := &Found{}, map[driver.Target]error{}
	for _, e := range engines {
		servers, err := e.listServers(ctx)
		if err != nil {
			return nil, fmt.Errorf("driver %s cannot list its servers: %w", e.Name, err)
		}
		if len(servers) == 0 {
			all.Doubt = errors.Join(all.Doubt, e.Doubt)
		}
		for _, s := range servers {
			all.addServer(foundServer{s, e}, seen)
		}
	}
	return all, nil
}

// listServers lists the servers of the engine. It has a timeout, since the engine's folder may be on storage that hangs.
func (e NamedEngine) listServers(ctx context.Context) ([]driver.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return datadir.Until(ctx, "no answer", func() ([]driver.Server, error) { return e.Engine.List(ctx) })
}

// addServer adds a server, unless the server was listed before because its engine is recorded both
// with and without its ID. seen has the doubts of the servers that were listed so far.
func (f *Found) addServer(s foundServer, seen map[driver.Target]error) {
	target := driver.Target{UID: s.UID, ID: s.ID}
	doubt, again := seen[target]
	seen[target] = s.engine.Doubt
	switch {
	case again && (doubt != nil || s.engine.Doubt != nil):
	case s.Retained:
		f.Released++
	default:
		f.servers = append(f.servers, s)
	}
}

// Count returns the number of servers that Remove removes.
func (f *Found) Count() int { return len(f.servers) }

// Print prints a table of the servers.
func (f *Found) Print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if len(f.servers) > 0 {
		_, _ = fmt.Fprintln(table, "DRIVER\tNAMESPACE\tNAME\tSTATE\tID")
	}
	for _, s := range f.servers {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", s.engine.Name, printable.Line(s.Namespace), printable.Line(s.Name), s.State, printable.Line(s.ID))
	}
	return table.Flush()
}

// Remove removes the servers, several at a time. It continues with the other servers if a server
// cannot be removed.
func (f *Found) Remove(ctx context.Context, c clock.WithTicker) error {
	errs := make([]error, len(f.servers))
	var all errgroup.Group
	all.SetLimit(maxParallel)
	for i, s := range f.servers {
		all.Go(func() error {
			if err := s.removeCompletely(ctx, c); err != nil {
				errs[i] = fmt.Errorf("%s server of %s/%s: %w", s.engine.Name, s.Namespace, s.Name, err)
			}
			return nil
		})
	}
	_ = all.Wait()
	return errors.Join(errs...)
}

// removeCompletely repeats Delete until the driver returns ErrNotFound: by the driver
// contract, only that means that nothing is left.
func (s *foundServer) removeCompletely(ctx context.Context, c clock.WithTicker) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	ticker := c.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		err := s.engine.Engine.Delete(ctx, driver.Target{UID: s.UID, ID: s.ID}, false)
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
