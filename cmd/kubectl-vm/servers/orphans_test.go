// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/rest/fake"
	"k8s.io/utils/clock"
)

// TestWait checks that a failure that may pass does not end the wait, and is reported if it
// does not pass.
func TestWait(t *testing.T) {
	t.Parallel()
	s := newServer("a", "u1", "id1")
	busy, starting := apierrors.NewTooManyRequests("busy", 1), apierrors.NewServiceUnavailable("a replica starts")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "virtualmachines"}, "", errors.New("not yours"))
	there := &Look{Servers: []Server{s}, Answered: []Engine{{"docker", "D"}}}
	owned := &Look{Servers: there.Servers, Answered: there.Answered, Owners: map[types.UID]bool{"u1": true}, Core: newCore()}
	for name, c := range map[string]struct {
		looks   []any // each a Look or an error; the last one is repeated
		timeout time.Duration
		says    []string
		looked  int
	}{
		"passes":  {[]any{starting, busy, syscall.ECONNRESET, there, forbidden}, time.Minute, []string{"not yours", "the approval stays"}, 5},
		"refused": {[]any{forbidden}, time.Minute, []string{"not yours", "the approval stays"}, 1},
		"stays":   {[]any{starting}, time.Second, []string{"1 server, such as u1, not removed", "the approval stays", "a replica starts"}, 0},
		"slow":    {[]any{there}, time.Second, []string{"the log says"}, 0},
		"is back": {[]any{busy, owned}, time.Minute, nil, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			var looked int
			r := &Remover{Out: &out, Clock: fastClock{}, Timeout: c.timeout, Look: func(context.Context) (*Look, error) {
				looked++
				switch next := c.looks[min(looked, len(c.looks))-1].(type) {
				case *Look:
					return next, nil
				case error:
					return nil, next
				}
				return nil, nil
			}}
			err := r.wait(t.Context(), []Server{s})
			if (err == nil) != (c.says == nil) || c.looked > 0 && looked != c.looked {
				t.Errorf("after %d looks: %v", looked, err)
			}
			for _, want := range c.says {
				if err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("%v lacks %q", err, want)
				}
			}
		})
	}
}

// newCore returns an API that fails once, and then has no approvals.
func newCore() rest.Interface {
	code := http.StatusServiceUnavailable
	return &fake.RESTClient{
		NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
		Client: fake.CreateHTTPClient(func(*http.Request) (*http.Response, error) {
			defer func() { code = http.StatusNotFound }()
			return &http.Response{StatusCode: code, Body: http.NoBody}, nil
		}),
	}
}

// fastClock ticks each millisecond, whatever the period.
type fastClock struct{ clock.RealClock }

func (c fastClock) NewTicker(time.Duration) clock.Ticker {
	return c.RealClock.NewTicker(time.Millisecond)
}
