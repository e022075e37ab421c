// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"bytes"
	"context"
	"encoding/json"
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

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func newServer(name, uid, id string) Server {
	return Server{"docker", "D", streams.Server{
		UID: types.UID(uid), ID: id, Namespace: "default", Name: name, State: "Running", StartedAt: now.Add(-time.Hour), MayBeOrphan: true,
	}}
}

// TestChoose checks that only an orphan of a driver that runs is chosen, and that the others
// are explained.
func TestChoose(t *testing.T) {
	t.Parallel()
	owned, orphan, kept, broken, off := newServer("a", "owned", "1"), newServer("b", "orphan", "2"), newServer("c", "kept", "333333333333333333333"), newServer("d", "broken", ""), newServer("e", "off", "5")
	kept.Retained, kept.MayBeOrphan = true, false
	broken.Error, broken.MayBeOrphan, off.Driver = "repair it", false, "qemu"
	snapshot := &Snapshot{
		Drivers: []string{"docker"}, Servers: []Server{owned, orphan, kept, broken, off}, Owners: map[types.UID]bool{"owned": true},
	}
	got := snapshot.Orphans()
	assert.True(t, len(got) == 2 && got[0].UID == "orphan" && got[1].UID == "off", "the orphans are %+v", got)
	got = snapshot.Retained()
	assert.True(t, len(got) == 1 && got[0].UID == "kept", "released are %+v", got)
	r := &Remover{Program: "kubectl vm"}
	for uid, message := range map[string]string{
		"owned": "belongs to the VirtualMachine default/a", "kept": "was released, so it is not an orphan", "broken": "repair it",
		"none": `has the UID "none"`, "off": "start Drover with --vm-driver=docker,qemu",
	} {
		assert.ErrorSays(t, uid, assert.ErrorOf(r.chooseOrphans(snapshot, []string{uid})), message)
	}
	chosen, err := r.chooseOrphans(snapshot, []string{"orphan", "orphan"})
	assert.True(t, err == nil && len(chosen) == 1, "got %+v, %v", chosen, err)
}

// TestReportGone checks that a server counts as removed only if its engine has answered.
func TestReportGone(t *testing.T) {
	t.Parallel()
	s, own := newServer("a", "u1", "id1"), []Engine{{"docker", "D"}}
	for name, c := range map[string]struct {
		snapshot Snapshot
		left     int
		says     string
	}{
		"gone":           {Snapshot{Answered: own}, 0, "Removed: docker server id1 of default/a."},
		"there":          {Snapshot{Answered: own, Servers: []Server{s}}, 1, ""},
		"another's":      {Snapshot{Answered: own, Servers: []Server{newServer("a", "u1", "id2")}}, 0, "Removed"},
		"no answer":      {Snapshot{}, 1, ""},
		"no id":          {Snapshot{Answered: []Engine{{"docker", ""}}}, 1, ""},
		"another engine": {Snapshot{Answered: []Engine{{"docker", "E"}, {"qemu", "D"}}}, 1, ""},
		"has an owner":   {Snapshot{Answered: own, Servers: []Server{s}, Owners: map[types.UID]bool{"u1": true}}, 0, "has a VirtualMachine again"},
	} {
		var out bytes.Buffer
		r := &Remover{Out: &out}
		s := s
		if name == "no id" {
			s.EngineID = ""
		}
		if left := r.reportGone(&c.snapshot, []Server{s}); len(left) != c.left || !strings.Contains(out.String(), c.says) || c.says == "" && out.Len() > 0 {
			t.Errorf("%s: left %+v, printed %q", name, left, out.String())
		}
	}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	never := newServer("b\x1b[2J", "u2", "id\x1b2")
	never.Driver, never.StartedAt, never.State = "d\x1b", time.Time{}, "Stopped"
	all := []Server{newServer("a", "u1", "0123456789abcdef01234"), never}
	var out bytes.Buffer
	const want = "ID             DRIVER   VM               STATE     AGE\n0123456789ab   docker   default/a        Running   60m\nid?2           d?       default/b?[2J   Stopped   -\n"
	err := PrintTable(&out, all, ByID, now, "none")
	assert.True(t, err == nil && strings.ReplaceAll(out.String(), " ", "") == strings.ReplaceAll(want, " ", ""), "got\n%s, %v", out.String(), err)
	out.Reset()
	err = PrintTable(&out, nil, ByUID, now, "None.")
	assert.True(t, err == nil && out.String() == "None.\n", "got %q, %v", out.String(), err)
	for _, some := range [][]Server{nil, all} {
		out.Reset()
		var got []Server
		err := errors.Join(PrintJSON(&out, some), json.Unmarshal(out.Bytes(), &got))
		assert.True(t, err == nil && got != nil && len(got) == len(some), "got %q, %v", out.String(), err)
	}
}

func TestShortID(t *testing.T) {
	for id, want := range map[string]string{
		"851671285a46d1f0c97ab2": "851671285a46", "web": "web", "default/a-long-name-1a2b3c4d": "default/a-long-name-1a2b3c4d",
	} {
		got := ShortID(id)
		assert.True(t, got == want, "ShortID(%q) = %q, want %q", id, got, want)
	}
}

// TestWait checks that a failure that may pass does not end the wait, and is reported if it
// does not pass.
func TestWait(t *testing.T) {
	t.Parallel()
	s := newServer("a", "u1", "id1")
	busy, starting := apierrors.NewTooManyRequests("busy", 1), apierrors.NewServiceUnavailable("a replica starts")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "virtualmachines"}, "", errors.New("not yours"))
	there := &Snapshot{Servers: []Server{s}, Answered: []Engine{{"docker", "D"}}}
	owned := &Snapshot{Servers: there.Servers, Answered: there.Answered, Owners: map[types.UID]bool{"u1": true}, Core: newCore()}
	for name, c := range map[string]struct {
		looks   []any // each a Look or an error; the last one is repeated
		timeout time.Duration
		says    []string
		looked  int
	}{
		"passes":  {[]any{starting, busy, syscall.ECONNRESET, there, forbidden}, time.Minute, []string{"not yours", "the approval stays"}, 5},
		"refused": {[]any{forbidden}, time.Minute, []string{"not yours", "the approval stays"}, 1},
		"stays":   {[]any{starting}, time.Second, []string{"1 server, such as u1, not removed", "the approval stays", "a replica starts"}, 0},
		"slow":    {[]any{there}, time.Second, []string{"the log of the controller says"}, 0},
		"is back": {[]any{busy, owned}, time.Minute, nil, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			var looked int
			r := &Remover{Out: &out, Clock: fastClock{}, Timeout: c.timeout, Read: func(context.Context) (*Snapshot, error) {
				looked++
				switch next := c.looks[min(looked, len(c.looks))-1].(type) {
				case *Snapshot:
					return next, nil
				case error:
					return nil, next
				}
				return nil, nil
			}}
			err := r.waitForRemoval(t.Context(), []Server{s})
			assert.True(t, (err == nil) == (c.says == nil) && (c.looked <= 0 || looked == c.looked), "after %d looks: %v", looked, err)
			for _, want := range c.says {
				assert.True(t, err == nil || strings.Contains(err.Error(), want), "%v lacks %q", err, want)
			}
		})
	}
}

// newCore returns an API that fails once, and then lacks approvals.
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
