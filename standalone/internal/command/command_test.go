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

	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/standalone/internal/engines"
	"cloudnative.tw/drover/test/assert"
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
		assert.True(t, got == c.want && (err == nil) == (c.says == "") && (err == nil || strings.Contains(err.Error(), c.says)), "%s: got %q, %v", name, got, err)
	}
}

// TestPrintServers checks that the output matches the answer of the API of streams about a server.
func TestPrintServers(t *testing.T) {
	t.Parallel()
	p := Program{Clock: clocktesting.NewFakeClock(now)}
	all := describeServers([]server{newServer("a", "u1", "0123456789abcdef01234")})
	var out bytes.Buffer
	const want = "ID             DRIVER   VM          STATE     AGE\n0123456789ab   docker   default/a   Running   60m\n"
	err := p.printServers(&out, all, servers.ByID, "", "none")
	assert.True(t, err == nil && out.String() == want, "got\n%s, %v", out.String(), err)
	assert.True(t, all[0].MayBeOrphan && all[0].EngineID == "D", "it is described as %+v", all[0])
	out.Reset()
	var got []map[string]any
	err = errors.Join(p.printServers(&out, all, servers.ByUID, outputJSON, ""), json.Unmarshal(out.Bytes(), &got))
	assert.True(t, err == nil && got[0]["uid"] == "u1", "got %q, %v", out.String(), err)
}

func TestImagesAsJSON(t *testing.T) {
	t.Parallel()
	all := describeImages([]folder.Image{{StoredImage: image.StoredImage{Digest: "sha256:1", Size: 7, FetchedAt: now, Sources: []string{"https://user:password@host/image"}}}})
	text, err := json.Marshal(all)
	assert.True(t, err == nil && len(all) == 1 && !strings.Contains(string(text), "password") && strings.Contains(string(text), `"usedBy":[]`),
		"got %s, %v", text, err)
}

// TestImagesOfTenants checks that what tenants wrote into their specs is in its place in the table,
// and that a terminal finds nothing in it to obey.
func TestImagesOfTenants(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := &imageOptions{Program: Program{Clock: clocktesting.NewFakeClock(now)}, out: &out}
	assert.NoError(t, o.printTable([]folder.Image{{
		StoredImage: image.StoredImage{Digest: "sha256:1", FetchedAt: now, Sources: []string{"host/\x1b]0;a\x07\nb\tc\u202e\u009b31m"}},
		UsedBy:      []string{"ns/\x1b[2J"},
	}}))
	want := "DIGEST     SIZE     AGE   USED BY   SOURCE\nsha256:1   0.0 MB   0s    ns/?[2J   host/?]0;a? b c??31m\n"
	assert.True(t, out.String() == want, "got\n%q, want\n%q", out.String(), want)
}

func TestConfirm(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]error{"y\n": nil, "Yes\n": nil, "YES": nil, "n\n": ErrDeclined, "\n": ErrDeclined, "": ErrDeclined, "yesterday\n": ErrDeclined} {
		assert.ErrorIs(t, answer, Confirm(strings.NewReader(answer), &bytes.Buffer{}, "Sure?"), want)
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
		"usage":   {&kit.ExitError{Code: 2, Err: errors.New("wrong")}, 2, "drover: wrong\n"},
		"printed": {&kit.ExitError{Code: 3}, 3, ""},
	} {
		var out bytes.Buffer
		code := Report(&out, c.err)
		assert.True(t, code == c.code && out.String() == c.says, "%s: got %d, %q", name, code, out.String())
	}
}
