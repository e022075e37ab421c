// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

func (w *world) newEphemeral(t *testing.T, name string) *server {
	t.Helper()
	s := w.newServer(t, name)
	s.Ephemeral, s.RootDiskBytes, s.StorageClassName = true, 0, nil
	return s
}

// isListed reports whether a complete list has a server.
func (s *server) isListed(t *testing.T) (bool, error) {
	t.Helper()
	all, err := s.d.List(t.Context())
	return slices.ContainsFunc(all, func(have driver.Server) bool { return have.UID == s.UID }), err
}

// TestListHasOwnWrites checks that lists from informers have what was just written, however far the
// informers are behind.
func TestListHasOwnWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	watched := w.open(t)
	assert.NoError(t, assert.ErrorOf(watched.Watch(t.Context())))
	var uids []types.UID
	for n := range 10 {
		s := w.newEphemeral(t, fmt.Sprintf("web-%d", n))
		s.d = watched
		assert.NoError(t, assert.ErrorOf(s.ensure(t)))
		if listed, err := s.isListed(t); !listed || err != nil {
			t.Errorf("%s is in the list: %t, %v", s.Name, listed, err)
		}
		uids = append(uids, s.UID)
		if named, err := watched.List(t.Context(), uids...); err != nil || len(named) != len(uids) {
			t.Errorf("the list of %d has %d: %v", len(uids), len(named), err)
		}
	}
}

// TestListIsLiveWhereInformersAreBehind has informers that never get anything. A list is live then,
// and fails where the API server cannot be reached.
func TestListIsLiveWhereInformersAreBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy := shared.NewAPIProxy(t)
	config, err := clientcmd.BuildConfigFromFlags("", proxy.Kubeconfig)
	assert.NoError(t, err)
	s := w.newEphemeral(t, "web")
	s.d = openAs(t, config, clusterID, 10*time.Second)
	s.reach(t, driver.StateRunning)
	informers, err := s.d.reader.NewInformers()
	assert.NoError(t, err)
	s.d.reader.Watched.Store(informers)
	for range 2 { // the first is live anyway
		if listed, err := s.isListed(t); !listed || err != nil {
			t.Errorf("it is in the list: %t, %v", listed, err)
		}
	}
	proxy.Disconnect()
	if listed, err := s.isListed(t); err == nil {
		t.Errorf("it is in the list: %t, and the API server cannot be reached", listed)
	}
	proxy.Restore()
	s.deleteAll(t)
}
