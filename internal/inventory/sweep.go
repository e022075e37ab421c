// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// OrphanPolicy says how to treat a server that no VirtualMachine owns.
type OrphanPolicy string

const (
	// OrphanDelete removes the server.
	OrphanDelete OrphanPolicy = "delete"
	// OrphanReport only reports it.
	OrphanReport OrphanPolicy = "report"
)

// Sweep finds servers that no VirtualMachine owns and, by policy, removes them. It
// removes only servers that two live readings of the API, a grace period apart, did
// not know. It removes nothing when suspiciously many look orphaned. A server that is to be
// retained is released instead, at the first reading: its data would be lost if this process
// ended before the second.
type Sweep struct {
	Inventory *Inventory
	// Cached reads the UIDs of all VirtualMachines from the API cache. While every
	// known server has its owner there, nothing is read live.
	Cached Owners
	// Live reads them from the API.
	Live Owners
	// Epoch returns the epoch of the leader that sweeps.
	Epoch  func() uint64
	Policy OrphanPolicy
	// Grace is how long a server must have been without an owner.
	Grace time.Duration
	// Max, if positive, allows that many orphans at once.
	Max int
	// Approved, if not nil, reads which servers a person has approved to be removed, by UID and
	// ID, whatever Policy and Max say. They too must have been without an owner in two readings.
	Approved func(context.Context) (map[driver.Target]bool, error)
	// Report is called for every orphan found, deleted or kept.
	Report func(Finding)

	orphans map[types.UID]*orphan
	frozen  bool
}

// Owners reads the UIDs of all VirtualMachines.
type Owners func(context.Context) (map[types.UID]bool, error)

// Finding is the report of a sweep about a server. Server is unset if it is Frozen.
type Finding struct {
	Server   driver.Server
	Deleted  bool
	Released bool
	Frozen   bool
	Message  string
}

type orphan struct {
	since    time.Time
	readings int
	reported bool
	deleted  bool
}

// alwaysAllowed is the number of orphans that are removed however few servers there are.
const alwaysAllowed = 3

// Start sweeps until ctx ends.
func (s *Sweep) Start(ctx context.Context) error {
	period := s.Inventory.Clock.NewTicker(s.period())
	defer period.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-period.C():
			if err := s.RunOnce(ctx); err != nil && ctx.Err() == nil {
				s.Inventory.Log.Info("Orphan sweep postponed", "driver", s.Inventory.Name, "cause", err.Error())
			}
		}
	}
}

// period returns the time between two readings, so that a grace period has two of them.
func (s *Sweep) period() time.Duration { return min(max(s.Grace/2, time.Second), time.Minute) }

// NeedLeaderElection returns true: only the leader sweeps.
func (s *Sweep) NeedLeaderElection() bool { return true }

// RunOnce takes one reading. It does nothing while the engine refuses this process,
// and reads nothing live while the caches know an owner of every server.
func (s *Sweep) RunOnce(ctx context.Context) error {
	if s.Inventory.cache.isSuspended() {
		return nil
	}
	gone, err := s.sweepOrphans(ctx)
	return errors.Join(err, s.releaseEnded(ctx, gone))
}

// releaseEnded has the driver remove what it keeps on servers without a VirtualMachine that have ended:
// those that were released, and orphans, whether or not these may be removed.
func (s *Sweep) releaseEnded(ctx context.Context, gone []types.UID) error {
	releaser, ok := driver.As[driver.EndedReleaser](s.Inventory.Driver)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Inventory.CallTimeout)
	defer cancel()
	return releaser.ReleaseEnded(ctx, gone...)
}

// sweepOrphans takes one reading of the orphans. It returns those that have been without an owner often and
// long enough.
func (s *Sweep) sweepOrphans(ctx context.Context) (due []types.UID, err error) {
	noted := s.Inventory.cache.noted.Keys()
	owned, err := s.allOwned(ctx)
	if err != nil {
		return nil, err
	}
	var servers, found []driver.Server
	if !owned {
		if servers, found, err = s.findOrphans(ctx); err != nil {
			return nil, err
		}
	}
	s.countReadings(found)
	fetches, orphans := splitFetches(found)
	for _, server := range orphans {
		if s.isDue(server) {
			due = append(due, server.UID)
		}
	}
	_, all := splitFetches(servers)
	errs := s.abandonFetches(ctx, fetches)
	orphanServers.WithLabelValues(s.Inventory.Name).Set(float64(len(orphans)))
	frozen := s.updateFreeze(len(orphans), len(all))
	removable := s.Policy == OrphanDelete && !frozen
	retained, orphans := splitRetained(orphans, noted)
	if removable {
		errs = errors.Join(errs, s.releaseOrphans(ctx, retained))
	} else {
		orphans = append(orphans, retained...)
	}
	approved, err := s.readApproved(ctx, removable || len(orphans) == 0)
	return due, errors.Join(errs, err, s.removeOrphans(ctx, orphans, func(server driver.Server) bool {
		return removable || approved[driver.Target{UID: server.UID, ID: server.ID}]
	}))
}

// splitRetained separates the orphans that are to be retained.
func splitRetained(orphans []driver.Server, noted []types.UID) (retained, others []driver.Server) {
	for _, server := range orphans {
		if slices.Contains(noted, server.UID) {
			retained = append(retained, server)
		} else {
			others = append(others, server)
		}
	}
	return retained, others
}

// releaseOrphans releases servers as the deletion of their VirtualMachines would have.
func (s *Sweep) releaseOrphans(ctx context.Context, orphans []driver.Server) error {
	var errs []error
	for _, server := range orphans {
		err := s.endOrphan(ctx, server, true)
		if err == nil {
			s.Report(Finding{Server: server, Released: true, Message: "its VirtualMachine is gone, and had deletionPolicy Retain"})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// readApproved reads the approvals, unless they are not needed. Without an answer nothing is
// approved.
func (s *Sweep) readApproved(ctx context.Context, needless bool) (map[driver.Target]bool, error) {
	if s.Approved == nil || needless {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Inventory.CallTimeout)
	defer cancel()
	approved, err := s.Approved(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the approvals of orphans: %w", err)
	}
	return approved, nil
}

// splitFetches separates fetches for servers that do not exist yet from servers.
func splitFetches(found []driver.Server) (fetches, servers []driver.Server) {
	for _, server := range found {
		if isFetch(server) {
			fetches = append(fetches, server)
		} else {
			servers = append(servers, server)
		}
	}
	return fetches, servers
}

func isFetch(s driver.Server) bool { return s.State == driver.StatePending && s.ID == "" }

// abandonFetches ends fetches for VirtualMachines that were removed without a deletion by
// Drover, for example because their finalizer was removed by hand. No server is
// removed with a fetch.
func (s *Sweep) abandonFetches(ctx context.Context, fetches []driver.Server) error {
	fetcher, ok := driver.As[driver.Fetcher](s.Inventory.Driver)
	var errs []error
	for _, fetch := range fetches {
		if !ok || !s.isDue(fetch) {
			continue
		}
		if err := fetcher.Abandon(ctx, fetch.UID); err != nil {
			errs = append(errs, fmt.Errorf("abandon the fetch for %s/%s: %w", fetch.Namespace, fetch.Name, err))
		}
	}
	return errors.Join(errs...)
}

// isDue reports whether a server was without an owner often and long enough.
func (s *Sweep) isDue(server driver.Server) bool {
	o := s.orphans[server.UID]
	return o.readings >= 2 && s.Inventory.Clock.Since(o.since) >= s.Grace
}

// allOwned reports whether the engine's servers are known and all have an owner in
// the API cache.
func (s *Sweep) allOwned(ctx context.Context) (bool, error) {
	uids, known := s.Inventory.cache.uidsWithServers()
	if !known {
		return false, nil
	}
	owners, err := s.readOwners(ctx, s.Cached)
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(uids, func(uid types.UID) bool { return !owners[uid] }), nil
}

// findOrphans returns the servers that may be swept, and those of them without an owner
// in the cache or in the API. It reads the engine first and the live API after, so
// that a VM created meanwhile counts as an owner.
func (s *Sweep) findOrphans(ctx context.Context) (servers, found []driver.Server, err error) {
	if servers, err = s.listEngine(ctx); err != nil {
		return nil, nil, err
	}
	found = slices.Clone(servers)
	for _, read := range []Owners{s.Cached, s.Live} {
		if len(found) == 0 {
			break
		}
		owners, err := s.readOwners(ctx, read)
		if err != nil {
			return nil, nil, err
		}
		found = slices.DeleteFunc(found, func(server driver.Server) bool { return owners[server.UID] })
	}
	return servers, found, nil
}

// listEngine returns the servers and fetches that may be swept. It leaves out
// servers without an ID, about which the engine knows nothing else: they may be another
// cluster's.
func (s *Sweep) listEngine(ctx context.Context) ([]driver.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Inventory.CallTimeout)
	defer cancel()
	all, err := s.Inventory.Driver.List(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(server driver.Server) bool {
		return !server.MayBeOrphan() && (server.Retained || !isFetch(server))
	}), nil
}

func (s *Sweep) readOwners(ctx context.Context, read Owners) (map[types.UID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Inventory.CallTimeout)
	defer cancel()
	owners, err := read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the VirtualMachines: %w", err)
	}
	return owners, nil
}

// countReadings counts this reading for the servers that were found and drops the rest.
func (s *Sweep) countReadings(found []driver.Server) {
	next := make(map[types.UID]*orphan, len(found))
	for _, server := range found {
		o := s.orphans[server.UID]
		if o == nil {
			o = &orphan{since: s.Inventory.Clock.Now()}
		}
		o.readings++
		next[server.UID] = o
	}
	s.orphans = next
}

// updateFreeze reports whether so many servers look orphaned that another fault is
// likely: more than three, more than a tenth of the servers, and more than Max.
func (s *Sweep) updateFreeze(orphans, servers int) bool {
	limit := max(alwaysAllowed, servers/10, s.Max)
	frozen := s.Policy == OrphanDelete && orphans > limit
	gauge := orphanSweepFrozen.WithLabelValues(s.Inventory.Name)
	gauge.Set(0)
	if frozen {
		gauge.Set(1)
	}
	if frozen && !s.frozen {
		s.Report(Finding{Frozen: true, Message: fmt.Sprintf(
			"%d of %d %s servers are without a VirtualMachine, more than the %d that are removed without asking: review them, then remove them by hand (kubectl vm orphans delete) or allow it with --orphan-max=%d",
			orphans, servers, s.Inventory.Name, limit, orphans)})
	}
	s.frozen = frozen
	return frozen
}

// removeOrphans deletes every orphan that is old enough and may be removed. With
// OrphanReport it reports the others.
func (s *Sweep) removeOrphans(ctx context.Context, found []driver.Server, mayRemove func(driver.Server) bool) error {
	var errs []error
	for _, server := range found {
		if !s.isDue(server) {
			continue
		}
		o := s.orphans[server.UID]
		switch {
		case mayRemove(server):
			errs = append(errs, s.deleteOrphan(ctx, o, server))
		case s.Policy != OrphanDelete:
			s.reportOnce(o, Finding{Server: server, Message: "no VirtualMachine owns it; --orphan-policy=report leaves it"})
		}
	}
	return errors.Join(errs...)
}

func (s *Sweep) reportOnce(o *orphan, f Finding) {
	if !o.reported {
		s.Report(f)
		o.reported = true
	}
}

func (s *Sweep) deleteOrphan(ctx context.Context, o *orphan, server driver.Server) error {
	if err := s.endOrphan(ctx, server, false); err != nil {
		return err
	}
	if !o.deleted { // it may have been reported as left before
		s.Report(Finding{Server: server, Deleted: true, Message: "no VirtualMachine owned it"})
		o.reported, o.deleted = true, true
	}
	return nil
}

// endOrphan deletes or releases a server.
func (s *Sweep) endOrphan(ctx context.Context, server driver.Server, retain bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.Inventory.CallTimeout)
	defer cancel()
	err := s.Inventory.Delete(ctx, driver.Target{UID: server.UID, ID: server.ID, Epoch: s.Epoch()}, retain)
	if err == nil || errors.Is(err, driver.ErrNotFound) {
		return nil
	}
	done := "delete"
	if retain {
		done = "release"
	}
	return fmt.Errorf("%s orphan %s (%s/%s): %w", done, server.ID, server.Namespace, server.Name, err)
}
