// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// notFenced lists the cases that do not apply; docs/adr/0007 says which guarantees hold instead.
var notFenced = map[string]string{
	"FenceOldEpoch":        "Docker Engine cannot compare epochs",
	"FenceOutlivesServers": "Docker Engine cannot compare epochs",
	"FencePerCluster":      "Docker Engine cannot compare epochs",
	"FenceUnderLoad":       "Docker Engine cannot compare epochs",
}

func TestContract(t *testing.T) {
	g := guestImages(t)
	actions := engineActions{g.client}
	drivertest.Run(t, drivertest.Harness{
		Open: func(t *testing.T, clusterID string) driver.Driver {
			return awaitingDriver{newDriver(t, Options{ClusterID: clusterID})}
		},
		Spec: func(*testing.T) driver.ServerSpec { return guestSpec(g.plain) },
		StubbornSpec: func(*testing.T) driver.ServerSpec {
			return guestSpec(g.stubborn)
		},
		OtherImage: g.other,
		Losable: func(t *testing.T, clusterID string) drivertest.Losable {
			p := newProxy(t)
			return drivertest.Losable{
				Driver: awaitingDriver{newDriver(t, Options{ClusterID: clusterID, Host: p.host()})},
				Lose:   p.disconnect, Restore: p.reconnect,
			}
		},
		OutOfBand: drivertest.OutOfBand{
			Kill: actions.kill, Stop: actions.stop, Exit: actions.exit, Pause: actions.pause,
			Start: actions.start, Remove: actions.remove, BurnCPU: actions.burn,
		},
		Guest:       shellGuest(g.client),
		Visible:     actions.visible,
		Restarts:    true,
		ResizesLive: true,
		Skips:       notFenced,
	})
}

// newDriver returns a driver for the tests' engine.
func newDriver(t *testing.T, o Options) *Driver {
	t.Helper()
	o.ClusterID = cmp.Or(o.ClusterID, "docker-test-"+randomText())
	o.CallTimeout = cmp.Or(o.CallTimeout, assert.StarvedLimit)
	o.Log, o.Clock = testr.New(t), clock.RealClock{}
	d, err := New(o)
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close(context.WithoutCancel(t.Context()))) })
	return d
}

// awaitingDriver waits until the guest of a running server is up. A container counts as running
// from its process's first moment, when that cannot handle a signal yet.
type awaitingDriver struct{ driver.Driver }

func (s awaitingDriver) Unwrap() driver.Driver { return s.Driver }

func (s awaitingDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	server, err := s.Driver.Ensure(ctx, spec)
	if err == nil && server.State == driver.StateRunning {
		awaitGuest(ctx, s.Driver, server)
	}
	return server, err
}

// awaitGuest waits until the HTTP service of the guest answers, or its run is over or paused: another caller may stop it.
func awaitGuest(ctx context.Context, d driver.Driver, server driver.Server) {
	_ = assert.Poll(ctx, "the guest answers", func() error {
		if len(server.Addresses) == 0 {
			return nil
		}
		_, err := httpGet(ctx, "http://"+server.Addresses[0]+"/")
		if err == nil {
			return nil
		}
		now, listErr := d.List(ctx, server.UID)
		if listErr == nil && (len(now) != 1 || now[0].Run != server.Run || now[0].State != driver.StateRunning) {
			return nil
		}
		return errors.Join(err, listErr)
	})
}

func guestSpec(image string) driver.ServerSpec {
	return driver.ServerSpec{
		Power: driver.PowerOn, CPUMilli: 500, MemoryBytes: 32e6,
		Image:         driver.Image{Source: image},
		RestartPolicy: driver.RestartNever,
	}
}

// engineActions does to containers what a person or the guest does.
type engineActions struct{ c *client.Client }

func (a engineActions) kill(t *testing.T, s driver.Server) {
	assert.NoError(t, assert.ErrorOf(a.c.ContainerKill(t.Context(), s.ID, client.ContainerKillOptions{Signal: "SIGKILL"})))
}

func (a engineActions) stop(t *testing.T, s driver.Server) {
	assert.NoError(t, assert.ErrorOf(a.c.ContainerStop(t.Context(), s.ID, client.ContainerStopOptions{})))
}

func (a engineActions) pause(t *testing.T, s driver.Server) {
	assert.NoError(t, framework.PauseContainer(t.Context(), a.c, s.ID))
}

func (a engineActions) start(t *testing.T, s driver.Server) {
	assert.NoError(t, assert.ErrorOf(a.c.ContainerStart(t.Context(), s.ID, client.ContainerStartOptions{})))
}

func (a engineActions) remove(t *testing.T, s driver.Server) {
	ctx := context.WithoutCancel(t.Context()) // also used for cleaning up
	assert.NoError(t, assert.ErrorOf(a.c.ContainerRemove(ctx, s.ID, client.ContainerRemoveOptions{Force: true})))
}

func (engineActions) exit(t *testing.T, s driver.Server, code int) {
	callGuest(t, s, "/exit?code=%d", code)
}
func (engineActions) burn(t *testing.T, s driver.Server) { callGuest(t, s, "/load?seconds=60") }

func (a engineActions) visible(t *testing.T, s driver.Server) string {
	res, err := a.c.ContainerInspect(t.Context(), s.ID, client.ContainerInspectOptions{})
	assert.NoError(t, err)
	return string(res.Raw)
}

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

// callGuest calls the HTTP service of the guest.
func callGuest(t *testing.T, s driver.Server, path string, args ...any) {
	t.Helper()
	assert.Require(t, len(s.Addresses) != 0, "the server does not have an address: %+v", s)
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
	assert.ErrorIs(t, "cleaning up", err, nil)
	for _, s := range res.Items {
		_, _ = c.ContainerRemove(ctx, s.ID, client.ContainerRemoveOptions{Force: true})
	}
	d.fetches.ReleaseExcept(uid)
}
