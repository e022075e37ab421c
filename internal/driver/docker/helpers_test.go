// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

func randomText() string { return rand.String(8) }

// images are the images that the tests run.
type images struct {
	client *client.Client
	// plain ends on SIGTERM, stubborn ignores it, other is another image like
	// plain, failing ends with code 3 at once.
	plain, stubborn, other, failing string
	// rootfs is a tar archive of the guest.
	rootfs []byte
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
		client: c, rootfs: rootfs, plain: "drover-test-guest:plain", stubborn: "drover-test-guest:stubborn",
		other: "drover-test-guest:other", failing: "drover-test-guest:failing",
	}
	for image, change := range map[string]string{
		g.plain: "EXPOSE 80/tcp", g.stubborn: "ENV IGNORE_TERM=1", g.other: "ENV OTHER=1",
		g.failing: "ENV EXIT_CODE=3",
	} {
		if err := importImage(ctx, c, rootfs, image, change); err != nil {
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
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "cloudnative.tw/drover/examples/demo-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the guest: %w: %s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	return tarArchive("demo-guest", content)
}

func tarArchive(name string, content []byte) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	err := w.Close()
	return archive.Bytes(), err
}

// importImage skips an image of the same guest, because each import would leave the
// previous image without a name.
func importImage(ctx context.Context, c *client.Client, rootfs []byte, image, change string) error {
	const label = "cloudnative.tw/test-guest"
	have, err := c.ImageInspect(ctx, image)
	if err == nil && have.Config != nil && have.Config.Labels[label] == contentDigest(rootfs) {
		return nil
	}
	if err == nil {
		_, _ = c.ImageRemove(ctx, image, client.ImageRemoveOptions{Force: true})
	}
	// The last one of several entry points counts.
	changes := []string{`ENTRYPOINT ["/demo-guest"]`, "LABEL " + label + "=" + contentDigest(rootfs), change}
	source := client.ImageImportSource{Source: bytes.NewReader(rootfs), SourceName: "-"}
	res, err := c.ImageImport(ctx, source, image, client.ImageImportOptions{Changes: changes})
	if err != nil {
		return err
	}
	defer func() { _ = res.Close() }()
	_, err = io.Copy(io.Discard, res)
	return err
}

// guestStart is how long a guest that no one stops takes to answer at most.
const guestStart = 3 * time.Second

// awaitGuest waits until the guest's own HTTP service answers, but for a limited time: another
// caller may be stopping it.
func awaitGuest(ctx context.Context, s driver.Server) {
	ctx, cancel := context.WithTimeout(ctx, guestStart)
	defer cancel()
	_ = assert.Poll(ctx, "the guest answers", func() error {
		if len(s.Addresses) == 0 {
			return nil
		}
		_, err := httpGet(ctx, "http://"+s.Addresses[0]+"/")
		return err
	})
}

// callGuest calls the guest's own HTTP service.
func callGuest(t *testing.T, s driver.Server, path string, args ...any) {
	t.Helper()
	if len(s.Addresses) == 0 {
		t.Fatalf("the server has no address: %+v", s)
	}
	url := "http://" + s.Addresses[0] + fmt.Sprintf(path, args...)
	assert.Eventually(t, url, func(testing.TB) error {
		code, err := httpGet(t.Context(), url)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("status %d", code)
		}
		return err
	})
}

// guestAnswer is how long a request to a guest may take, which may have been killed under it.
const guestAnswer = 5 * time.Second

func httpGet(ctx context.Context, url string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, guestAnswer)
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

// removeContainers removes the containers of a UID, for cleaning up.
func removeContainers(t *testing.T, d *Driver, uid types.UID) {
	c := guestImages(t).client
	ctx := context.WithoutCancel(t.Context())
	res, err := c.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", uidFilter(uid)),
	})
	if err != nil {
		t.Errorf("cleaning up: %v", err)
	}
	for _, s := range res.Items {
		_, _ = c.ContainerRemove(ctx, s.ID, client.ContainerRemoveOptions{Force: true})
	}
	d.fetches.ReleaseExcept(uid)
}
