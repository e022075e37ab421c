// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

func inspectRaw(t *testing.T, id string) container.InspectResponse {
	t.Helper()
	res, err := guestImages(t).client.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	assert.NoError(t, err)
	return res.Container
}

// createUnmanaged creates a container without the driver.
func createUnmanaged(t *testing.T, name string, labels map[string]string) string {
	t.Helper()
	return createContainer(t, name, &container.Config{Image: guestImages(t).plain, Labels: labels})
}

func createContainer(t *testing.T, name string, config *container.Config) string {
	t.Helper()
	g := guestImages(t)
	res, err := g.client.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: name, Config: config})
	assert.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, _ = g.client.ContainerRemove(ctx, res.ID, client.ContainerRemoveOptions{Force: true})
	})
	return res.ID
}

func TestCreatedAsSpecified(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	spec.CPUMilli, spec.MemoryBytes, spec.RestartPolicy = 1500, 64e6, driver.RestartOnFailure
	s := ensureState(t, d, spec, driver.StateRunning)
	in := inspectRaw(t, s.ID)
	host := in.HostConfig
	assert.True(t, host.NanoCPUs == 1500000000 && host.Memory == 64000000 && host.MemorySwap == 64000000 && host.RestartPolicy.Name == "on-failure",
		"got %d nano CPUs, %d memory, %d with swap, policy %s", host.NanoCPUs, host.Memory, host.MemorySwap, host.RestartPolicy.Name)
	if want := "/" + spec.Name + ".default." + string(spec.UID[:8]); in.Name != want || in.Config.Hostname != spec.Name {
		t.Errorf("got the name %s and the host name %s, want %s and %s", in.Name, in.Config.Hostname, want, spec.Name)
	}
	for label, want := range map[string]string{
		LabelUID: string(spec.UID), LabelNamespace: "default", LabelName: spec.Name, LabelCluster: d.Options.ClusterID, LabelEpoch: "7",
	} {
		assert.Equal(t, "label "+label, in.Config.Labels[label], want)
	}
	for policy, want := range map[driver.RestartPolicy]container.RestartPolicyMode{
		"": "unless-stopped", driver.RestartAlways: "unless-stopped", driver.RestartNever: "no",
	} {
		spec.RestartPolicy = policy
		assert.Equal(t, fmt.Sprintf("%q becomes", policy), d.Options.createOptions(spec, "", "").HostConfig.RestartPolicy.Name, want)
	}
}

func TestNameConflict(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	for name, labels := range map[string]map[string]string{
		"a person's container":        nil,
		"another cluster's container": {LabelUID: "of another", LabelCluster: "another-cluster", LabelNamespace: "n", LabelName: "v"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := newSpec(t, d, guestImages(t).plain)
			id := createUnmanaged(t, containerName(spec), labels)
			wantError(t, assert.ErrorOf(d.Ensure(t.Context(), spec)), driver.ErrRetry, driver.ReasonNameConflict, containerName(spec), engine.ShortID(id), labels[LabelCluster], "rename or remove it")
			wantError(t, d.Delete(t.Context(), spec.Target, false), driver.ErrNotFound, "")
			assert.Equal(t, "the other container, want it untouched", inspectRaw(t, id).State.Status, container.StateCreated)
			assert.NoError(t, assert.ErrorOf(guestImages(t).client.ContainerRemove(t.Context(), id, client.ContainerRemoveOptions{})))
			ensureState(t, d, spec, driver.StateRunning)
		})
	}
}

func TestDuplicate(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	first := ensureState(t, d, spec, driver.StateRunning)
	second := createUnmanaged(t, "", map[string]string{LabelUID: string(spec.UID), LabelCluster: d.Options.ClusterID})
	off := spec
	off.Power = driver.PowerOff
	wantError(t, assert.ErrorOf(d.Ensure(t.Context(), off)), driver.ErrRetry, driver.ReasonDuplicate, first.ID, second)
	for _, retain := range []bool{false, true} {
		wantError(t, d.Delete(t.Context(), spec.Target, retain), driver.ErrRetry, driver.ReasonDuplicate, first.ID, second)
	}
	all := mustList(t, d, spec.UID)
	assert.True(t, len(all) == 2, "List shows %+v, want both", all)
	assert.True(t, inspectRaw(t, first.ID).State.Status == container.StateRunning && inspectRaw(t, second).State.Status == container.StateCreated,
		"one of them was touched")
}

func TestRenamedByHand(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	before := ensureState(t, d, spec, driver.StateRunning)
	name := "by-hand-" + randomText()
	assert.NoError(t, assert.ErrorOf(guestImages(t).client.ContainerRename(t.Context(), before.ID, client.ContainerRenameOptions{NewName: name})))
	s := mustEnsure(t, d, spec)
	assert.True(t, s.ID == before.ID && s.Run == before.Run, "after the rename it is %+v, want it unchanged: %+v", s, before)
	got := inspectRaw(t, before.ID).Name
	assert.True(t, got == "/"+name, "the name is %s, want %s left alone", got, name)
	assert.NoError(t, d.Delete(t.Context(), spec.Target, false))
}

func TestRetained(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	spec.RestartPolicy = driver.RestartAlways
	s := ensureState(t, d, spec, driver.StateRunning)
	createUnmanaged(t, containerName(spec)+RetainedSuffix, nil) // a name that is taken does not matter
	assert.NoError(t, d.Delete(t.Context(), spec.Target, true))
	in := inspectRaw(t, s.ID)
	assert.True(t, strings.HasSuffix(in.Name, RetainedSuffix) && in.State.Status == container.StateRunning && in.HostConfig.RestartPolicy.Name == "unless-stopped",
		"released it is %s, %s, %s", in.Name, in.State.Status, in.HostConfig.RestartPolicy.Name)
	all := mustList(t, d)
	assert.True(t, len(all) == 1 && all[0].Retained && all[0].Run == s.Run, "List shows %+v, want the released server", all)
	wantError(t, d.Delete(t.Context(), spec.Target, false), driver.ErrNotFound, "")
}

func TestRefused(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	for name, c := range map[string]struct {
		change func(*driver.ServerSpec)
		kind   error
		texts  []string
	}{
		"image":       {func(s *driver.ServerSpec) { s.Image.Source = "https://x/y.img" }, driver.ErrInvalid, []string{"spec.image.source", `"https://"`}},
		"cpu":         {func(s *driver.ServerSpec) { s.CPUMilli = 4096500 }, driver.ErrExhausted, []string{"spec.resource.cpu", "4096.5 needed", "the Docker host has "}},
		"memory":      {func(s *driver.ServerSpec) { s.MemoryBytes = 64 << 40 }, driver.ErrExhausted, []string{"spec.resource.memory", "64Ti needed", "the Docker host has "}},
		"tiny memory": {func(s *driver.ServerSpec) { s.MemoryBytes = 1000 }, driver.ErrInvalid, []string{"memory limit"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := newSpec(t, d, guestImages(t).plain)
			c.change(&spec)
			wantError(t, assert.ErrorOf(d.Ensure(t.Context(), spec)), c.kind, "", c.texts...)
			all := mustList(t, d, spec.UID)
			assert.True(t, len(all) == 0, "it left %+v", all)
		})
	}
}

// TestRefusedSpecStops checks that a container can be stopped by a spec that no container can have.
func TestRefusedSpecStops(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	ensureState(t, d, spec, driver.StateRunning)
	spec.UserData, spec.Image.Source = driver.NewSecret("x"), "https://x/y.img"
	off := spec
	off.Power = driver.PowerOff
	ensureState(t, d, off, driver.StateStopped)
	wantError(t, assert.ErrorOf(d.Ensure(t.Context(), spec)), driver.ErrInvalid, "")
}

func TestRootDiskIsNoted(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	spec.RootDiskBytes = 40e9
	for _, want := range []string{"40G", "50G"} {
		note := "rootDisk " + want + " is not enforced: most Docker storage drivers cannot limit it"
		assert.Equal(t, "Ensure notes", ensureState(t, d, spec, driver.StateRunning).Note, note)
		assert.Equal(t, "List notes", mustList(t, d, spec.UID)[0].Note, note)
		spec.RootDiskBytes = 50e9
	}
	assert.Contains(t, "after a restart List notes, want what the container was made with", mustList(t, newDriver(t, d.Options), spec.UID)[0].Note, "rootDisk 40G")
}

func answersAt(t *testing.T, address string) error {
	t.Helper()
	code, err := httpGet(t.Context(), "http://"+address+"/")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("status %d", code)
	}
	return err
}

func TestPorts(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	fixed := framework.FreePort(t)
	spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80, HostPort: fixed}, {Name: "any", Port: 81}, {Name: "dns", Protocol: "UDP", Port: 53}}
	s := ensureState(t, d, spec, driver.StateRunning)
	assert.Eventually(t, "the published port", func(testing.TB) error { return answersAt(t, fmt.Sprintf("127.0.0.1:%d", fixed)) })
	want := portsOf(t, s.ID)
	assert.True(t, slices.Equal(s.Ports, want), "open are %+v, want %+v", s.Ports, want)
	open := portsTo(s, 80)
	assert.True(t, slices.Equal(open, []driver.Port{{Protocol: "TCP", Port: 80, HostPort: fixed}}), "open to port 80 are %+v, want %d", open, fixed)
	listed := mustList(t, d, spec.UID)[0]
	assert.True(t, slices.Equal(listed.Ports, s.Ports) && slices.Equal(listed.Addresses, s.Addresses), "List shows %+v, Ensure %+v", listed, s)

	changed := spec
	changed.Ports = []driver.Port{{Port: 80}}
	waiting := mustEnsure(t, d, changed)
	assert.True(t, slices.Equal(waiting.Pending, []string{"ports"}) && waiting.Run == s.Run,
		"with changed ports it is %+v, want them pending and the run %s", waiting, s.Run)
	changed.RestartRun, changed.StopBy = s.Run, time.Now().Add(time.Hour)
	after := ensureNewRun(t, d, changed, s.Run)
	want = portsOf(t, after.ID)
	assert.Require(t, slices.Equal(after.Ports, want) && len(portsTo(after, 80)) == len(want), "open are %+v, want %+v, and none but to port 80", after.Ports, want)
	assert.Eventually(t, "the port that the engine chose", func(testing.TB) error { return answersAt(t, fmt.Sprintf("127.0.0.1:%d", after.Ports[0].HostPort)) })
}

// portsOf returns the ports that the engine reports as published: one entry for a host port that is
// the same for IPv4 and IPv6, and else two. The engine chooses the ports separately, and chooses
// different ones once a port is taken for either.
func portsOf(t *testing.T, id string) (all []driver.Port) {
	t.Helper()
	for _, protocol := range []string{"53/udp", "80/tcp", "81/tcp"} {
		port := network.MustParsePort(protocol)
		bindings := inspectRaw(t, id).NetworkSettings.Ports[port]
		for _, b := range bindings {
			hostPort, err := strconv.Atoi(b.HostPort)
			assert.NoError(t, err)
			p := driver.Port{Protocol: strings.ToUpper(string(port.Proto())), Port: int32(port.Num()), HostPort: int32(hostPort)} //nolint:gosec // a port
			if len(bindings) == 2 && bindings[0].HostPort != bindings[1].HostPort {
				p.HostIP = b.HostIP.String()
			}
			all = append(all, p)
		}
	}
	return slices.Compact(all)
}

// portsTo returns the open ports that lead to a port of the server.
func portsTo(s driver.Server, port int32) (all []driver.Port) {
	for _, p := range s.Ports {
		if p.Port == port {
			all = append(all, p)
		}
	}
	return all
}

// TestPortsThatDiffer has a container with one host port for IPv4 and another for IPv6, as
// the engine makes it by itself once a port was taken for one of the two.
func TestPortsThatDiffer(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	spec.Ports = []driver.Port{{Name: "http", Port: 80}}
	four, six := framework.FreePort(t), framework.FreePort(t)
	options := d.Options.createOptions(spec, "", spec.Image.Source)
	options.HostConfig.PortBindings = network.PortMap{network.MustParsePort("80/tcp"): {
		{HostIP: netip.IPv4Unspecified(), HostPort: fmt.Sprint(four)}, {HostIP: netip.IPv6Unspecified(), HostPort: fmt.Sprint(six)},
	}}
	assert.NoError(t, assert.ErrorOf(guestImages(t).client.ContainerCreate(t.Context(), options)))
	s := ensureState(t, d, spec, driver.StateRunning)
	want := []driver.Port{{Protocol: "TCP", Port: 80, HostPort: four, HostIP: "0.0.0.0"}, {Protocol: "TCP", Port: 80, HostPort: six, HostIP: "::"}}
	assert.True(t, slices.Equal(s.Ports, want), "open are %+v, want %+v", s.Ports, want)
	for _, p := range want {
		assert.Eventually(t, "the published port", func(testing.TB) error { return answersAt(t, net.JoinHostPort(p.HostIP, fmt.Sprint(p.HostPort))) })
	}
}

func TestPortConflict(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	for name, take := range map[string]func(t *testing.T, port int32) (free func()){
		"container": func(t *testing.T, port int32) func() {
			spec := newSpec(t, d, guestImages(t).plain)
			spec.Ports = []driver.Port{{Port: 80, HostPort: port}}
			ensureState(t, d, spec, driver.StateRunning)
			return func() { assert.NoError(t, d.Delete(t.Context(), spec.Target, false)) }
		},
		"program": func(t *testing.T, port int32) func() {
			l := framework.Listen(t, "tcp", fmt.Sprintf(":%d", port))
			return func() { assert.NoError(t, l.Close()) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := framework.FreePort(t)
			free := take(t, port)
			spec := newSpec(t, d, guestImages(t).plain)
			spec.Ports = []driver.Port{{Port: 81}, {Port: 80, HostPort: port}}
			for range 2 {
				wantError(t, assert.ErrorOf(d.Ensure(t.Context(), spec)), driver.ErrRetry, driver.ReasonPortConflict, fmt.Sprintf("spec.ports[1].hostPort: host port %d is in use", port))
				if all := mustList(t, d, spec.UID); len(all) != 1 || all[0].State != driver.StateStopped || all[0].Exit != nil {
					t.Fatalf("List shows %+v, want the container, never started", all)
				}
			}
			free()
			ensureState(t, d, spec, driver.StateRunning)
			assert.Eventually(t, "the published port", func(testing.TB) error { return answersAt(t, fmt.Sprintf("127.0.0.1:%d", port)) })
		})
	}
}

// TestDefaultImage checks that a changed default applies to new servers only.
func TestDefaultImage(t *testing.T) {
	t.Parallel()
	g := guestImages(t)
	d := newDriver(t, Options{Image: g.plain})
	spec := newSpec(t, d, "")
	first := ensureState(t, d, spec, driver.StateRunning)
	o := d.Options
	o.Image = g.other
	d = newDriver(t, o)
	for _, source := range []string{"", g.plain, "docker.io/library/" + g.plain} {
		spec.Image.Source = source
		s := mustEnsure(t, d, spec)
		assert.True(t, s.Run == first.Run && len(s.Pending) == 0, "with the image %q it is %+v, want it unchanged", source, s)
	}
	spec.Image.Source = g.other
	s := mustEnsure(t, d, spec)
	assert.True(t, slices.Equal(s.Pending, []string{"image"}), "with another image it is %+v, want that pending", s)
	spec.Image.Source = ""
	spec.RestartRun, spec.StopBy = first.Run, time.Now().Add(time.Hour)
	s = ensureNewRun(t, d, spec, first.Run)
	assert.True(t, s.ID == first.ID, "it is %+v, want the container %s", s, first.ID)
}

// restarterDelay is longer than the engine's restarter waits after the first short runs.
const restarterDelay = 2 * time.Second

// TestStoppedForGood checks that neither the engine's restarter nor its backoff starts a
// stopped container.
func TestStoppedForGood(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	for name, c := range map[string]struct {
		image string
		state driver.State
	}{
		"running":       {guestImages(t).plain, driver.StateRunning},
		"crash looping": {guestImages(t).failing, driver.StateRestarting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := newSpec(t, d, c.image)
			spec.RestartPolicy = driver.RestartAlways
			ensureState(t, d, spec, c.state)
			spec.Power, spec.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
			s := ensureState(t, d, spec, driver.StateStopped)
			time.Sleep(restarterDelay)
			in := inspectRaw(t, s.ID)
			assert.Require(t, !in.State.Running && !in.State.Restarting, "it is %s again", in.State.Status)
			spec.Power = driver.PowerOn
			ensureState(t, d, spec, c.state)
		})
	}
}

func TestStopIsReported(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).stubborn)
	first := ensureState(t, d, spec, driver.StateRunning)
	spec.Power, spec.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
	want := "stopping, forced at " + spec.StopBy.UTC().Format(time.RFC3339)
	for _, s := range []driver.Server{mustEnsure(t, d, spec), mustEnsure(t, d, spec), mustList(t, d)[0], mustList(t, d, spec.UID)[0]} {
		assert.True(t, s.State == driver.StateStopping && s.Progress == want && s.Run == first.Run, "got %+v, want it %q", s, want)
	}
	// A stop that was begun is completed, and then the spec applies.
	spec.Power = driver.PowerOn
	s := mustEnsure(t, d, spec)
	assert.True(t, s.State == driver.StateStopping, "got %+v, want it to go on stopping", s)
	spec.Power, spec.StopBy = driver.PowerOff, time.Now()
	s = ensureState(t, d, spec, driver.StateStopped)
	assert.True(t, s.Exit != nil && s.Exit.Code == 137, "got %+v, want it killed", s)
	spec.Power = driver.PowerOn
	ensureState(t, d, spec, driver.StateRunning)
}

// TestStopAfterForcedStop checks that a run gets its grace period although an earlier run
// of the same container was killed.
func TestStopAfterForcedStop(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	for _, c := range []struct {
		grace time.Duration
		want  int
	}{{-time.Hour, 137}, {time.Hour, 0}} {
		spec.Power = driver.PowerOn
		ensureState(t, d, spec, driver.StateRunning)
		spec.Power, spec.StopBy = driver.PowerOff, time.Now().Add(c.grace)
		s := ensureState(t, d, spec, driver.StateStopped)
		assert.True(t, s.Exit != nil && s.Exit.Code == c.want, "with %v to stop it ended with %+v, want the code %d", c.grace, s.Exit, c.want)
	}
}

// TestRepairedBetweenRuns checks that a guest that cannot run gets its new image
// although the engine's restarter keeps trying the old one.
func TestRepairedBetweenRuns(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).failing)
	spec.RestartPolicy = driver.RestartAlways
	s := ensureState(t, d, spec, driver.StateRestarting)
	assert.True(t, s.Exit != nil && s.Exit.Code == 3 && s.Exit.Reason == "Error", "between runs it is %+v, want the exit code 3", s)
	spec.Image.Source = guestImages(t).plain
	ensureState(t, d, spec, driver.StateRunning)
}

func TestResizeLive(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	spec.MemoryBytes = 64e6
	first := ensureState(t, d, spec, driver.StateRunning)
	callGuest(t, first, "/memory?bytes=%d", 30<<20)

	spec.CPUMilli, spec.MemoryBytes, spec.RestartPolicy = 1000, 128e6, driver.RestartAlways
	s := mustEnsure(t, d, spec)
	in := inspectRaw(t, s.ID).HostConfig
	assert.True(t, s.Run == first.Run && in.NanoCPUs == 1e9 && in.Memory == 128e6 && in.MemorySwap == 128e6 && in.RestartPolicy.Name == "unless-stopped",
		"grown it is %+v with %+v", s, in.Resources)

	small := spec
	small.MemoryBytes = 16e6
	wantError(t, assert.ErrorOf(d.Ensure(t.Context(), small)), driver.ErrRetry, "", "spec.resource.memory", "16M is less than the ", "in use")
	s = mustList(t, d, spec.UID)[0]
	assert.True(t, s.Run == first.Run && s.Applied.MemoryBytes == 128e6, "after a refused shrink it is %+v", s)
	huge := spec
	huge.CPUMilli = 4096000
	wantError(t, assert.ErrorOf(d.Ensure(t.Context(), huge)), driver.ErrExhausted, "", "spec.resource.cpu")

	// A size that the host cannot provide does not keep a server on.
	huge.Power, huge.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
	assert.Eventually(t, "the stop", func(testing.TB) error {
		_, err := d.Ensure(t.Context(), huge)
		if all := mustList(t, d, spec.UID); all[0].State != driver.StateStopped {
			return fmt.Errorf("it is %+v, Ensure gave %w", all, errors.Join(err, driver.ErrRetry))
		}
		return nil
	})
	ensureState(t, d, small, driver.StateRunning) // the host can provide this size
}

// TestOutOfMemory tries more than once: on a busy host the engine may see the end of a
// run before its cause, and then never records the cause.
func TestOutOfMemory(t *testing.T) {
	tier.Full(t, "it takes up to five runs that use up their memory; TestExitStatus keeps how the engine's report is read")
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	var s driver.Server
	for range 5 {
		s = ensureState(t, d, spec, driver.StateRunning)
		_, _ = httpGet(t.Context(), fmt.Sprintf("http://%s/memory?bytes=%d", s.Addresses[0], 2*spec.MemoryBytes))
		s = awaitListed(t, d, spec.UID, "its end", func(s driver.Server) bool { return s.State == driver.StateStopped })
		assert.Require(t, s.Exit != nil && s.Exit.Code == 137, "it ended with %+v, want it killed", s.Exit)
		if s.Exit.Reason == "OOMKilled" {
			return
		}
	}
	t.Errorf("it ended with %+v, want it killed for its use of memory", s.Exit)
}

// TestAdoptUnstarted simulates a crash between the creation and the start of a container.
func TestAdoptUnstarted(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	half, err := d.createInstance(t.Context(), spec)
	assert.NoError(t, err)
	s := ensureState(t, newDriver(t, d.Options), spec, driver.StateRunning)
	assert.True(t, s.ID == half.id, "Ensure made %s, want %s adopted", s.ID, half.id)
}

// TestLateSecondLeader checks that a leader that lost the race for the name takes over
// the winner's container, in whatever state that is.
func TestLateSecondLeader(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	spec := newSpec(t, d, guestImages(t).plain)
	winner := newDriver(t, Options{ClusterID: d.Options.ClusterID})
	var won driver.Server
	p.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/containers/create") && won.ID == "" {
			won = mustEnsure(t, winner, spec)
		}
		return false
	})
	s := mustEnsure(t, d, spec)
	assert.True(t, s.ID == won.ID && s.Run == won.Run && s.State == driver.StateRunning, "the second got %+v, want %+v", s, won)
}

// TestLimitsOfContainer checks on the engine that a container gets the limits of its creation and
// keeps them: one from before them is neither replaced nor changed.
func TestLimitsOfContainer(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	before := ensureState(t, d, spec, driver.StateRunning)
	limited := newDriver(t, Options{ClusterID: d.Options.ClusterID, PIDs: 99, LogSize: "64Ki", LogFiles: 2})
	spec.CPUMilli = 700
	if s := mustEnsure(t, limited, spec); s.ID != before.ID || s.Run != before.Run || len(s.Pending) > 0 {
		t.Errorf("from before the limits it is %+v, want %+v", s, before)
	}
	spec = newSpec(t, limited, guestImages(t).plain)
	s := ensureState(t, limited, spec, driver.StateRunning)
	spec.CPUMilli, spec.MemoryBytes = 700, 48e6
	mustEnsure(t, limited, spec)
	host := inspectRaw(t, s.ID).HostConfig
	assert.True(t, host.PidsLimit != nil && *host.PidsLimit == 99 && host.NanoCPUs == 7e8, "resized it has %+v, want 99 processes at most", host.Resources)
	info, err := guestImages(t).client.Info(t.Context(), client.InfoOptions{})
	assert.True(t, err == nil && (info.Info.LoggingDriver != "json-file" || host.LogConfig.Config["max-size"] == "65536"), "its log is %+v, %v", host.LogConfig, err)
}

// TestHealthcheck checks that the HEALTHCHECK of an image says whether its container is ready, and
// that a change of that is an event.
func TestHealthcheck(t *testing.T) {
	t.Parallel()
	g := guestImages(t)
	rootfs, err := shellArchive(t.Context(), g.rootfs)
	assert.NoError(t, err)
	image := "drover-test:health-" + randomText()
	assert.NoError(t, framework.ImportImage(t.Context(), g.client, rootfs, image, `ENTRYPOINT ["/bin/sh", "/shell.sh"]`,
		`HEALTHCHECK --interval=100ms --retries=1 --start-period=1h CMD ["/bin/cat", "/healthy"]`))
	t.Cleanup(func() {
		_, _ = g.client.ImageRemove(context.WithoutCancel(t.Context()), image, client.ImageRemoveOptions{Force: true})
	})
	d, spec := newServer(t, image)
	events, err := d.Watch(t.Context())
	assert.NoError(t, err)
	s := ensureState(t, d, spec, driver.StateRunning)
	assert.Equal(t, "at first it is not ready because of", s.NotReady, "the HEALTHCHECK of the image has not succeeded yet")
	mustList(t, d) // caches what the event has to discard
	drainEvents(events)
	runInContainer(t, g.client, s.ID, "echo >/healthy")
	awaitEvent(t, events, spec.UID)
	assert.Eventually(t, "the check succeeds", func(testing.TB) error {
		all := mustList(t, d)
		return assert.ErrorUnless(len(all) == 1 && all[0].NotReady == "", "listed as %+v", all)
	})
}
