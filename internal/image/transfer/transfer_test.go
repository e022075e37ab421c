// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"cloudnative.tw/drover/internal/image/egress"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// newCopy returns a copy to a new file, and the number of bytes that it has counted.
func newCopy(t *testing.T) (c *Copy, out *os.File, sent *int) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "copy"))
	assert.NoError(t, err)
	t.Cleanup(func() { _ = out.Close() })
	sent = new(int)
	return &Copy{
		Out: out, OnData: func() {}, OnSent: func(p []byte) { *sent += len(p) },
		Begin: func(string, int64) error { return nil },
	}, out, sent
}

// TestFromReader checks that the copy is the content, has holes for zeros, is compared with the
// checksum, and ends with its context.
func TestFromReader(t *testing.T) {
	t.Parallel()
	want := make([]byte, 1<<20)
	copy(want[510:], "\x55\xaa")
	copy(want[700_000:], "data")
	checksum := fmt.Sprintf("sha256:%x", sha256.Sum256(want))
	c, out, sent := newCopy(t)
	assert.NoError(t, c.FromReader(t.Context(), bytes.NewReader(want)))
	info, err := c.Finish(out, checksum)
	assert.NoError(t, err)
	if got := framework.ReadFile(t, out.Name()); got != string(want) || *sent != len(want) || info.Format != "raw" || c.Checksum() != checksum {
		t.Errorf("%d bytes were counted, the copy is %+v, and it differs: %v", *sent, info, got != string(want))
	}
	var stat syscall.Stat_t
	assert.NoError(t, syscall.Stat(out.Name(), &stat))
	allocated := stat.Blocks * 512
	assert.True(t, allocated < int64(len(want)), "the copy takes %d bytes of the disk", allocated)
	assert.ErrorSays(t, "another checksum", assert.ErrorOf(c.Finish(out, "sha256:0")), "its checksum is "+checksum+", and sha256:0 was asked for")
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	c, _, _ = newCopy(t)
	assert.ErrorIs(t, "an interrupted copy", c.FromReader(ctx, bytes.NewReader(want)), stopped)
}

// TestFromWeb checks which errors are of the content, and that errors of this host are returned as they are.
func TestFromWeb(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("drover! "), 1<<10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/unstated" {
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		}
		_, _ = w.Write(content)
	}))
	t.Cleanup(server.Close)
	hosts, err := egress.ParseHosts([]string{"127.0.0.1"})
	assert.NoError(t, err)
	full, refused := errors.New("the disk is full"), errors.New("not now")
	for name, c := range map[string]struct {
		url    string
		change func(c *Copy)
		says   string
		is     error // of this host
	}{
		"taken":       {server.URL, func(*Copy) {}, "", nil},
		"stated":      {server.URL, func(c *Copy) { c.Limit.Bytes = 100 }, "it has 8192 bytes: --size allows 100", nil},
		"not stated":  {server.URL + "/unstated", func(c *Copy) { c.Limit.Bytes = 100 }, "it has more than 100 bytes, the limit of --size", nil},
		"not a URL":   {"http://[", func(*Copy) {}, "it is not a valid URL", nil},
		"no space":    {server.URL, func(c *Copy) { c.Out = failingFile{full} }, "", full},
		"not started": {server.URL, func(c *Copy) { c.Begin = func(string, int64) error { return refused } }, "", refused},
	} {
		copied, _, sent := newCopy(t)
		copied.Limit = Limit{1 << 20, "--size"}
		copied.Begin = func(_ string, total int64) error { return copied.Limit.Check(total) }
		c.change(copied)
		err := copied.FromWeb(t.Context(), egress.New(hosts), c.url)
		unusable, isUnusable := errors.AsType[*ContentError](err)
		switch {
		case c.is != nil:
			assert.ErrorIs(t, name, err, c.is)
		case c.says != "":
			assert.True(t, isUnusable && unusable.IsInvalid && err.Error() == c.says, "%s: got the error %v, want an invalid image and %q", name, err, c.says)
		default:
			assert.NoError(t, err)
			assert.True(t, *sent == len(content) && copied.Length() == int64(len(content)), "%s: %d bytes were counted and %d written", name, *sent, copied.Length())
		}
	}
}

// failingFile takes nothing.
type failingFile struct{ err error }

func (f failingFile) WriteAt([]byte, int64) (int, error) { return 0, f.err }
