// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/util/rand"

	"cloudnative.tw/drover/internal/driver"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func randomText() string { return rand.String(8) }

// images are what the tests run.
type images struct {
	client *client.Client
	// plain ends on SIGTERM, stubborn ignores it, other is another image like
	// plain, failing ends with code 3 at once.
	plain, stubborn, other, failing string
}

// guestImages imports the demo guest into the engine, once for all tests.
func guestImages(t *testing.T) images {
	t.Helper()
	g, err := importGuests()
	if err != nil {
		t.Fatalf("the tests need a Docker engine, which hack/dockerd.sh installs and starts: %v", err)
	}
	return g
}

var importGuests = sync.OnceValues(func() (images, error) {
	ctx := context.Background()
	c, err := client.New(client.FromEnv)
	if err != nil {
		return images{}, err
	}
	rootfs, err := buildGuest(ctx)
	if err != nil {
		return images{}, err
	}
	g := images{
		client: c, plain: "drover-test-guest:plain", stubborn: "drover-test-guest:stubborn",
		other: "drover-test-guest:other", failing: "drover-test-guest:failing",
	}
	for image, env := range map[string]string{g.plain: "", g.stubborn: "IGNORE_TERM=1", g.other: "OTHER=1", g.failing: "EXIT_CODE=3"} {
		if err := importImage(ctx, c, rootfs, image, env); err != nil {
			return images{}, err
		}
	}
	return g, nil
})

// buildGuest returns a tar archive of the guest's file system.
func buildGuest(ctx context.Context) ([]byte, error) {
	dir, err := os.MkdirTemp("", "drover-guest-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "demo-guest")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", program, "cloudnative.tw/drover/examples/demo-guest") //nolint:gosec // no outside input
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the guest: %w: %s", err, out)
	}
	content, err := os.ReadFile(program) //nolint:gosec // just built
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "demo-guest", Mode: 0o755, Size: int64(len(content))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	return archive.Bytes(), w.Close()
}

func importImage(ctx context.Context, c *client.Client, rootfs []byte, image, env string) error {
	changes := []string{`ENTRYPOINT ["/demo-guest"]`, "EXPOSE 80/tcp"}
	if env != "" {
		changes = append(changes, "ENV "+env)
	}
	source := client.ImageImportSource{Source: bytes.NewReader(rootfs), SourceName: "-"}
	res, err := c.ImageImport(ctx, source, image, client.ImageImportOptions{Changes: changes})
	if err != nil {
		return err
	}
	defer func() { _ = res.Close() }()
	_, err = io.Copy(io.Discard, res)
	return err
}

// until polls until try gives no error.
func until(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// getFromGuest calls the guest's own HTTP service.
func getFromGuest(t *testing.T, s driver.Server, want int, path string, args ...any) error {
	t.Helper()
	if len(s.Addresses) == 0 {
		return fmt.Errorf("the server has no address: %+v", s)
	}
	url := "http://" + s.Addresses[0] + fmt.Sprintf(path, args...)
	var err error
	until(t, url, func() error {
		var code int
		code, err = get(t, url)
		if err == nil && code != want {
			return fmt.Errorf("GET %s: status %d", url, code)
		}
		return err
	})
	return err
}

func get(t *testing.T, url string) (int, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// proxy stands before the engine's socket and can be cut.
type proxy struct {
	t      *testing.T
	path   string
	engine string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	engine := strings.TrimPrefix(guestImages(t).client.DaemonHost(), "unix://")
	dir, err := os.MkdirTemp("", "drover-proxy-") //nolint:usetesting // t.TempDir may be too long for a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &proxy{t: t, path: filepath.Join(dir, "docker.sock"), engine: engine, conns: map[net.Conn]bool{}}
	p.restore()
	t.Cleanup(p.lose)
	return p
}

func (p *proxy) host() string { return "unix://" + p.path }

// lose cuts what is connected and lets nobody connect.
func (p *proxy) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return
	}
	_ = p.listener.Close()
	p.listener = nil
	for c := range p.conns {
		_ = c.Close()
	}
	p.conns = map[net.Conn]bool{}
}

func (p *proxy) restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", p.path)
	if err != nil {
		p.t.Errorf("listening on %s: %v", p.path, err)
		return
	}
	p.listener = l
	go p.accept(l)
}

func (p *proxy) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go p.serve(c)
	}
}

func (p *proxy) serve(c net.Conn) {
	e, err := (&net.Dialer{}).DialContext(context.Background(), "unix", p.engine)
	if err != nil || !p.track(c, e) {
		_ = c.Close()
		return
	}
	go func() { _, _ = io.Copy(e, c); _ = e.Close() }()
	_, _ = io.Copy(c, e)
	_ = c.Close()
}

// track is false when the proxy was cut meanwhile.
func (p *proxy) track(c, e net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		_ = e.Close()
		return false
	}
	p.conns[c], p.conns[e] = true, true
	return true
}
