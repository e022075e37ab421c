// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
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
	assert.NoError(t, err)
	return g
}

var importGuests = sync.OnceValues(func() (images, error) {
	g := images{
		plain: framework.GuestPlain, stubborn: framework.GuestStubborn, other: framework.GuestOther, failing: framework.GuestFailing,
	}
	var err error
	if g.client, err = framework.OpenDockerClient(); err == nil {
		g.rootfs, err = framework.GuestArchive()
	}
	return g, err
})

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
