// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package purge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// fakeEngine has servers, each of which is gone after a given number of calls to Delete.
type fakeEngine struct {
	mu      sync.Mutex
	servers map[types.UID]int
	release map[types.UID]bool
	listErr error
	stuck   error
}

func (e *fakeEngine) List(context.Context, ...types.UID) ([]driver.Server, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []driver.Server
	for _, uid := range slices.Sorted(maps.Keys(e.servers)) {
		all = append(all, driver.Server{
			UID: uid, ID: "id-" + string(uid), Namespace: "default", Name: "vm-" + string(uid),
			State: driver.StateRunning, Retained: e.release[uid],
		})
	}
	return all, e.listErr
}

func (e *fakeEngine) Delete(_ context.Context, t driver.Target, retain bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stuck != nil && t.UID == "stuck" {
		return e.stuck
	}
	if _, ok := e.servers[t.UID]; !ok {
		return driver.ErrNotFound
	}
	if retain || t.ID != "id-"+string(t.UID) {
		return errors.New("not what was found")
	}
	if e.servers[t.UID]--; e.servers[t.UID] <= 0 {
		delete(e.servers, t.UID)
	}
	return nil
}

func docker(e Engine) NamedEngine { return NamedEngine{Name: "docker", Engine: e} }

func find(t *testing.T, engines ...NamedEngine) *Found {
	t.Helper()
	found, err := Find(t.Context(), engines)
	assert.NoError(t, err)
	return found
}

func TestRemoveOnEveryEngine(t *testing.T) {
	engine := &fakeEngine{servers: map[types.UID]int{"a": 1, "b": 3}}
	fake := &fakeEngine{servers: map[types.UID]int{"c": 1}}
	found := find(t, docker(engine), NamedEngine{Name: "fake", Engine: fake})
	assert.Equal(t, "found", found.Count(), 3)
	assert.NoError(t, found.Remove(t.Context(), clock.RealClock{}))
	assert.True(t, len(engine.servers)+len(fake.servers) == 0, "left %v and %v", engine.servers, fake.servers)
}

func TestReleasedServersStay(t *testing.T) {
	engine := &fakeEngine{servers: map[types.UID]int{"a": 1, "kept": 1}, release: map[types.UID]bool{"kept": true}}
	found := find(t, docker(engine))
	assert.True(t, found.Count() == 1 && found.Released == 1, "found %d, released %d", found.Count(), found.Released)
	assert.NoError(t, found.Remove(t.Context(), clock.RealClock{}))
	_, ok := engine.servers["kept"]
	assert.True(t, ok, "the released server was removed")
}

func TestFindFailsIfAnEngineDoesNotAnswer(t *testing.T) {
	away := driver.Errorf(driver.ErrUnavailable, "no socket")
	_, err := Find(t.Context(), []NamedEngine{docker(&fakeEngine{listErr: away})})
	assert.True(t, errors.Is(err, driver.ErrUnavailable) && strings.HasPrefix(err.Error(), "driver docker "), "got %v", err)
}

// slowEngine is empty, and takes a time to say so.
type slowEngine struct {
	fakeEngine

	takes time.Duration
}

func (e *slowEngine) List(ctx context.Context, _ ...types.UID) ([]driver.Server, error) {
	select {
	case <-time.After(e.takes):
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestTimeOfAnEngine checks that every engine has the whole time, and that the call of one that does
// not answer in it ends.
func TestTimeOfAnEngine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // fails if a call is left
		slow := docker(&slowEngine{takes: listTimeout - 1})
		find(t, slow, slow)
		for range 20 {
			_, err := Find(t.Context(), []NamedEngine{slow, docker(&slowEngine{takes: time.Hour})})
			const want = "driver docker cannot list its servers: no answer: context deadline exceeded"
			assert.True(t, err != nil && err.Error() == want, "got %v, want %s", err, want)
		}
	})
}

func TestRemoveContinuesAfterAFailure(t *testing.T) {
	engine := &fakeEngine{servers: map[types.UID]int{"stuck": 1, "z": 1}, stuck: errors.New("device busy")}
	err := find(t, docker(engine)).Remove(t.Context(), clock.RealClock{})
	assert.True(t, err != nil && err.Error() == "docker server of default/vm-stuck: device busy", "got %v", err)
	_, ok := engine.servers["z"]
	assert.True(t, !ok, "the other server is still there")
}

func TestPrintNamesServers(t *testing.T) {
	var out strings.Builder
	assert.NoError(t, find(t, docker(&fakeEngine{servers: map[types.UID]int{"a": 1}})).Print(&out))
	for _, want := range []string{"docker", "default", "vm-a", "Running", "id-a"} {
		assert.Contains(t, want+" is missing in\n", out.String(), want)
	}
}

// TestPrintOfTenants checks that a terminal finds nothing to obey in the names of servers.
func TestPrintOfTenants(t *testing.T) {
	t.Parallel()
	found := &Found{servers: []foundServer{{engine: NamedEngine{Name: "docker"}, Server: driver.Server{Namespace: "a\x1b[31m", Name: "b\nc", ID: "d\te\u202e"}}}}
	var out strings.Builder
	assert.NoError(t, found.Print(&out))
	want := "DRIVER   NAMESPACE   NAME   STATE   ID\ndocker   a?[31m      b c            d e?\n"
	assert.True(t, out.String() == want, "got %q, want %q", out.String(), want)
}

// TestDoubt checks that an engine which may not be the one that was used is trusted if it
// has servers, and not if it has none.
func TestDoubt(t *testing.T) {
	doubt := errors.New("who knows")
	found := find(t, NamedEngine{Name: "docker", Engine: &fakeEngine{}, Doubt: doubt})
	assert.True(t, errors.Is(found.Doubt, doubt), "of one without servers: %v", found.Doubt)
	has := &fakeEngine{servers: map[types.UID]int{"a": 1}}
	found = find(t, NamedEngine{Name: "docker", Engine: has, Doubt: doubt})
	assert.True(t, found.Doubt == nil && found.Count() == 1, "of one with a server: %v, %d", found.Doubt, found.Count())
}

// TestOneEngineTwice checks that an engine that is recorded with its id and without it
// counts as one. Two folders are two, even if one is a copy of the other.
func TestOneEngineTwice(t *testing.T) {
	engine := &fakeEngine{servers: map[types.UID]int{"a": 1, "kept": 1}, release: map[types.UID]bool{"kept": true}}
	sure, doubtful := docker(engine), NamedEngine{Name: "docker", Engine: engine, Doubt: errors.New("who knows")}
	for _, both := range [][]NamedEngine{{sure, doubtful}, {doubtful, sure}} {
		found := find(t, both...)
		assert.True(t, found.Count() == 1 && found.Released == 1, "found %d, released %d", found.Count(), found.Released)
	}
	found := find(t, sure, sure)
	assert.True(t, found.Count() == 2, "found %d on two engines", found.Count())
}

// blockingEngine has servers whose removals block until a given number has begun.
type blockingEngine struct {
	Engine
	began     chan context.Context
	released  chan struct{}
	deadlines sync.Map
}

func (c *blockingEngine) Delete(ctx context.Context, _ driver.Target, _ bool) error {
	deadline, _ := ctx.Deadline()
	c.deadlines.Store(deadline, true)
	c.began <- ctx
	<-c.released
	return driver.ErrNotFound
}

// TestRemoveInParallel checks that several servers are removed at a time, each with a separate
// time limit.
func TestRemoveInParallel(t *testing.T) {
	const count = 3 * maxParallel
	servers := &fakeEngine{servers: map[types.UID]int{}}
	for i := range count {
		servers.servers[types.UID(fmt.Sprint(i))] = 1
	}
	c := &blockingEngine{Engine: servers, began: make(chan context.Context, count), released: make(chan struct{})}
	found := find(t, docker(c))
	over := make(chan error)
	go func() { over <- found.Remove(t.Context(), clock.RealClock{}) }()
	for range maxParallel {
		<-c.began
	}
	close(c.released)
	assert.NoError(t, <-over)
	limits := 0
	c.deadlines.Range(func(any, any) bool { limits++; return true })
	assert.True(t, limits == count, "%d servers have %d limits", count, limits)
}
