// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/test/assert"
)

// server is an API server that notes what is applied and deleted.
type server struct {
	*fake.FakeDynamicClient

	sync.Mutex
	applied, deleted []string
	failures         int // how many requests fail before one succeeds
}

func newServer() *server {
	s := &server{FakeDynamicClient: fake.NewSimpleDynamicClient(runtime.NewScheme())}
	s.PrependReactor("*", "*", s.react)
	return s
}

func (s *server) react(action clienttesting.Action) (bool, runtime.Object, error) {
	s.Lock()
	defer s.Unlock()
	if s.failures > 0 {
		s.failures--
		return true, nil, errors.New("not now")
	}
	switch a := action.(type) {
	case clienttesting.UpdateAction:
		object, err := meta.Accessor(a.GetObject())
		if err != nil {
			return true, nil, err
		}
		s.applied = append(s.applied, a.GetResource().Resource+"/"+object.GetName())
	case clienttesting.DeleteAction:
		s.deleted = append(s.deleted, a.GetResource().Resource+"/"+a.GetName())
		return true, nil, apierrors.NewNotFound(a.GetResource().GroupResource(), a.GetName())
	}
	return true, &unstructured.Unstructured{}, nil
}

// take returns what was applied and deleted since the last call.
func (s *server) take() (applied, deleted []string) {
	s.Lock()
	defer s.Unlock()
	applied, deleted = s.applied, s.deleted
	s.applied, s.deleted = nil, nil
	return applied, deleted
}

var (
	roles    = []string{"clusterroles/drover-view", "clusterroles/drover-edit", "clusterroles/drover-admin"}
	policies = []string{
		"validatingadmissionpolicies/drover-unenforced-kinds", "validatingadmissionpolicybindings/drover-unenforced-kinds",
		"validatingadmissionpolicies/drover-unenforced-quotas", "validatingadmissionpolicybindings/drover-unenforced-quotas",
	}
)

func newSet(t *testing.T, s *server, allAPIs bool) *Set {
	t.Helper()
	set, err := NewSet(s, allAPIs)
	assert.NoError(t, err)
	return set
}

// TestApply checks that a start with all APIs, whose objects may be for tests of a cluster's behaviour, removes the
// policies of a start without.
func TestApply(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		allAPIs          bool
		applied, deleted []string
	}{
		"usual":    {false, append(slices.Clone(roles), policies...), nil},
		"all APIs": {true, roles, policies},
	} {
		s := newServer()
		assert.NoError(t, newSet(t, s, c.allAPIs).Apply(t.Context()))
		if applied, deleted := s.take(); !slices.Equal(applied, c.applied) || !slices.Equal(deleted, c.deleted) {
			t.Errorf("%s: applied %v and deleted %v, want %v and %v", name, applied, deleted, c.applied, c.deleted)
		}
	}
}

// TestKeep checks that objects which someone deletes are restored in the next minute, and that a failure is made
// up for in the one after it.
func TestKeep(t *testing.T) {
	t.Parallel()
	s, clock := newServer(), clocktesting.NewFakeClock(time.Unix(0, 0))
	set := newSet(t, s, false)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { set.Keep(ctx, clock); close(ended) }()
	for _, failures := range []int{0, 1, 0} {
		s.Lock()
		s.failures = failures
		s.Unlock()
		assert.Eventually(t, "Keep waits", func(testing.TB) error {
			return assert.ErrorUnless(clock.HasWaiters(), "it does not")
		})
		clock.Step(keepPeriod)
		assert.Eventually(t, "the objects are applied", func(testing.TB) error {
			s.Lock()
			defer s.Unlock()
			return assert.ErrorUnless((len(s.applied) == len(roles)+len(policies) || failures != 0) && s.failures <= 0, "they are not")
		})
		s.take()
	}
	cancel()
	<-ended
}
