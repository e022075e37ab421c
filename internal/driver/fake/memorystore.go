// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/statedir"
)

// Memory is an engine in memory. It outlives its Drivers, and several Drivers can
// share it, as several controllers share an engine.
//
// Its exported methods change servers without the drivers' knowledge, as a person
// can do.
type Memory struct {
	clock   clock.PassiveClock
	id      string
	watches kit.Watches

	mu       sync.RWMutex
	lost     bool
	servers  map[types.UID]Record
	retained map[string]Record // by ID
	epochs   map[string]uint64 // the highest epoch of each cluster
	edits    int
}

// NewMemory returns an engine without servers.
func NewMemory(c clock.PassiveClock) *Memory {
	return &Memory{
		clock: c, id: string(uuid.NewUUID()),
		servers: map[types.UID]Record{}, retained: map[string]Record{}, epochs: map[string]uint64{},
	}
}

// SetAvailable makes the engine unreachable, or reachable again.
func (m *Memory) SetAvailable(available bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost = !available
	if m.lost {
		m.watches.ShutDown()
	}
}

// Records returns all servers, also the released ones, in the order of their
// IDs.
func (m *Memory) Records() []Record {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := m.allRecords()
	slices.SortFunc(all, func(a, b Record) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Edit changes a server like a person who edits its file: fields that edit leaves empty
// are filled in. A server that does not exist is added.
func (m *Memory) Edit(uid types.UID, edit func(*Record)) error {
	if err := driver.CheckUID(uid); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.servers[uid]
	edit(&r)
	m.edits++
	if err := r.completeFields(uid, m.clock.Now(), fmt.Sprintf("hand-%d", m.edits)); err != nil {
		return fmt.Errorf("the server %s: %w", uid, err)
	}
	m.storeRecord(uid, &r)
	return nil
}

// Remove removes the server of a UID, but not the released servers of that UID.
func (m *Memory) Remove(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.storeRecord(uid, nil)
}

// RemoveRetained removes a released server.
func (m *Memory) RemoveRetained(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.retained[id]; ok {
		delete(m.retained, id)
		m.watches.Notify(r.UID)
	}
}

func (m *Memory) engineID() (string, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.id, m.checkReachable()
}

func (m *Memory) getRecord(uid types.UID) (*Record, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.findRecord(uid), m.checkReachable()
}

func (m *Memory) listRecords(_ context.Context, uids ...types.UID) ([]Record, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.checkReachable(); err != nil {
		return nil, err
	}
	if len(uids) == 0 {
		return m.allRecords(), nil
	}
	records := make([]Record, 0, len(uids))
	for _, uid := range uids {
		if r, ok := m.servers[uid]; ok {
			records = append(records, r)
		}
	}
	return records, nil
}

func (m *Memory) changeRecord(uid types.UID, leader leaderEpoch, edit func(*Record) (*Record, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkReachable(); err != nil {
		return err
	}
	if err := statedir.CompareEpochs(leader.epoch, m.epochs[leader.clusterID]); err != nil {
		return err
	}
	m.epochs[leader.clusterID] = max(m.epochs[leader.clusterID], leader.epoch)
	old := m.findRecord(uid)
	next, err := edit(m.findRecord(uid))
	if err != nil || reflect.DeepEqual(old, next) {
		return err
	}
	m.storeRecord(uid, next)
	return nil
}

func (m *Memory) watchRecords(ctx context.Context) (*kit.Queue, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkReachable(); err != nil {
		return nil, err
	}
	return m.watches.Open(ctx), nil
}

// The methods below require the lock to be held.

func (m *Memory) checkReachable() error {
	if m.lost {
		return driver.Errorf(driver.ErrUnavailable, "the fake engine in memory is unreachable")
	}
	return nil
}

func (m *Memory) findRecord(uid types.UID) *Record {
	if r, ok := m.servers[uid]; ok {
		return &r
	}
	return nil
}

func (m *Memory) allRecords() []Record {
	all := make([]Record, 0, len(m.servers)+len(m.retained))
	for _, r := range m.servers {
		all = append(all, r)
	}
	for _, r := range m.retained {
		all = append(all, r)
	}
	return all
}

func (m *Memory) storeRecord(uid types.UID, next *Record) {
	switch {
	case next == nil:
		delete(m.servers, uid)
	case next.Retained:
		delete(m.servers, uid)
		m.retained[next.ID] = *next
	default:
		m.servers[uid] = *next
	}
	m.watches.Notify(uid)
}
