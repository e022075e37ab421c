// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	vm "cloudnative.tw/drover/cmd/kubectl-vm/app"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/standalone/internal/doctor"
	"cloudnative.tw/drover/standalone/internal/engines"
	"cloudnative.tw/drover/standalone/internal/runstate"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func newServer(name, uid, id string) server {
	return server{
		driver.Server{UID: types.UID(uid), ID: id, Namespace: "default", Name: name, State: driver.StateRunning, StartedAt: now.Add(-time.Hour)},
		engines.Engine{Driver: "docker", ID: "D"},
	}
}

func TestChooseByID(t *testing.T) {
	t.Parallel()
	all := []server{newServer("a", "u1", "abcd1111"), newServer("b", "u2", "abcd2222"), newServer("c", "u3", "abc")}
	for name, c := range map[string]struct {
		ids        []string
		want, says string
	}{
		"whole":             {[]string{"abcd1111"}, "a", ""},
		"beginning":         {[]string{"abcd2"}, "b", ""},
		"short but whole":   {[]string{"abc"}, "c", ""},
		"twice":             {[]string{"abcd1", "abcd1111"}, "a", ""},
		"several":           {[]string{"abcd2", "abcd1"}, "ba", ""},
		"ambiguous":         {[]string{"abcd"}, "", `2 released servers have an id that begins with "abcd"`},
		"too short":         {[]string{"ab"}, "", `no released server has the id "ab"`},
		"none":              {[]string{"abcd1", "x"}, "", `no released server has the id "x"`},
		"empty":             {[]string{""}, "", `the id ""`},
		"a UID, not the ID": {[]string{"u1"}, "", `the id "u1"`},
	} {
		got := ""
		chosen, err := chooseByID(all, c.ids)
		for _, s := range chosen {
			got += s.Name
		}
		if got != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

// TestChooseOrphans checks that only an orphan of a driver that runs is chosen, and that the
// others are explained.
func TestChooseOrphans(t *testing.T) {
	t.Parallel()
	owned, orphan, kept, broken, off := newServer("a", "owned", "1"), newServer("b", "orphan", "2"), newServer("c", "kept", "3333333333333333"), newServer("d", "broken", ""), newServer("e", "off", "5")
	kept.Retained, broken.Err, off.engine.Driver = true, errors.New("repair it"), "qemu"
	r := &review{
		host:    &doctor.Host{State: &runstate.State{Drivers: []string{"docker"}}},
		servers: []server{owned, orphan, kept, broken, off}, owners: map[types.UID]bool{"owned": true},
	}
	if got := r.orphans(); len(got) != 2 || got[0].UID != "orphan" || got[1].UID != "off" {
		t.Errorf("the orphans are %+v", got)
	}
	for uid, says := range map[string]string{
		"owned": "belongs to the VirtualMachine default/a", "kept": "drover retained delete 333333333333", "broken": "repair it",
		"none": `has the UID "none"`, "off": "start it with --vm-driver=docker,qemu",
	} {
		if _, err := r.choose([]string{uid}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", uid, err, says)
		}
	}
	if chosen, err := r.choose([]string{"orphan", "orphan"}); err != nil || len(chosen) != 1 {
		t.Errorf("got %+v, %v", chosen, err)
	}
}

// TestReportGone checks that a server counts as removed only if its engine has answered.
func TestReportGone(t *testing.T) {
	t.Parallel()
	s := newServer("a", "u1", "id1")
	for name, c := range map[string]struct {
		r    review
		left int
		says string
	}{
		"gone":           {review{}, 0, "Removed: docker server id1 of default/a."},
		"there":          {review{servers: []server{s}}, 1, ""},
		"another's":      {review{servers: []server{newServer("a", "u1", "id2")}}, 0, "Removed"},
		"no answer":      {review{silent: []engines.Surveyed{{Engine: s.engine}}}, 1, ""},
		"another engine": {review{silent: []engines.Surveyed{{Engine: engines.Engine{Driver: "qemu"}}}}, 0, "Removed"},
		"has an owner":   {review{servers: []server{s}, owners: map[types.UID]bool{"u1": true}}, 0, "has a VirtualMachine again"},
	} {
		var out bytes.Buffer
		o := &orphansOptions{out: &out}
		if left := o.reportGone(&c.r, []server{s}); len(left) != c.left || !strings.Contains(out.String(), c.says) || c.says == "" && out.Len() > 0 {
			t.Errorf("%s: left %+v, printed %q", name, left, out.String())
		}
	}
}

func TestPrintServers(t *testing.T) {
	t.Parallel()
	p := Program{Clock: clocktesting.NewFakeClock(now)}
	never := newServer("b", "u2", "id2")
	never.StartedAt, never.State = time.Time{}, driver.StateStopped
	all := []server{newServer("a", "u1", "0123456789abcdef"), never}
	var out bytes.Buffer
	const want = "ID             DRIVER   VM          STATE     AGE\n0123456789ab   docker   default/a   Running   60m\nid2            docker   default/b   Stopped   -\n"
	if err := p.printServers(&out, all, keyID, "", "none"); err != nil || out.String() != want {
		t.Errorf("got\n%s, %v", out.String(), err)
	}
	out.Reset()
	if err := p.printServers(&out, nil, keyUID, "", "None."); err != nil || out.String() != "None.\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	for _, some := range [][]server{nil, all} {
		out.Reset()
		var got []serverJSON
		if err := errors.Join(p.printServers(&out, some, keyUID, outputJSON, "None."), json.Unmarshal(out.Bytes(), &got)); err != nil || got == nil || len(got) != len(some) {
			t.Errorf("got %q, %v", out.String(), err)
		}
	}
}

func TestImagesAsJSON(t *testing.T) {
	t.Parallel()
	all := describeImages([]folder.Image{{StoredImage: image.StoredImage{Digest: "sha256:1", Size: 7, FetchedAt: now, Sources: []string{"https://user:password@host/image"}}}})
	text, err := json.Marshal(all)
	if err != nil || len(all) != 1 || strings.Contains(string(text), "password") || !strings.Contains(string(text), `"usedBy":[]`) {
		t.Errorf("got %s, %v", text, err)
	}
}

func TestConfirm(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]error{"y\n": nil, "Yes\n": nil, "YES": nil, "n\n": ErrDeclined, "\n": ErrDeclined, "": ErrDeclined, "yesterday\n": ErrDeclined} {
		if err := Confirm(strings.NewReader(answer), &bytes.Buffer{}, "Sure?"); !errors.Is(err, want) {
			t.Errorf("%q: got %v", answer, err)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		code int
		says string
	}{
		"any":     {errors.New("x"), 1, "drover: x\n"},
		"usage":   {&vm.ExitError{Code: 2, Err: errors.New("wrong")}, 2, "drover: wrong\n"},
		"printed": {&vm.ExitError{Code: 3}, 3, ""},
	} {
		var out bytes.Buffer
		if code := Report(&out, c.err); code != c.code || out.String() != c.says {
			t.Errorf("%s: got %d, %q", name, code, out.String())
		}
	}
}
