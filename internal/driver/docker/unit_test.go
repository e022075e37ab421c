// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/test/assert"
)

func TestNextStep(t *testing.T) {
	t.Parallel()
	const run = "is-on"
	started := time.Unix(0, 1)
	thisRun := (&instance{id: run, startedAt: started}).runID()
	image := []string{"image"}
	for name, c := range map[string]struct {
		state    container.ContainerState
		power    driver.Power
		endRun   string
		stopping bool
		pending  []string
		want     kit.Step
	}{
		"created, on":                    {state: container.StateCreated, power: driver.PowerOn, want: kit.StepStart},
		"created, off":                   {state: container.StateCreated, power: driver.PowerOff, want: kit.StepNone},
		"created, paused":                {state: container.StateCreated, power: driver.PowerPaused, want: kit.StepStart},
		"created, on, changed":           {state: container.StateCreated, power: driver.PowerOn, pending: image, want: stepReplace},
		"exited, on":                     {state: container.StateExited, power: driver.PowerOn, want: kit.StepStart},
		"exited, on, that run over":      {state: container.StateExited, power: driver.PowerOn, endRun: thisRun, want: kit.StepStart},
		"exited, on, changed":            {state: container.StateExited, power: driver.PowerOn, pending: image, want: stepReplace},
		"exited, off, changed":           {state: container.StateExited, power: driver.PowerOff, pending: image, want: kit.StepNone},
		"exited, paused":                 {state: container.StateExited, power: driver.PowerPaused, want: kit.StepStart},
		"dead, on":                       {state: container.StateDead, power: driver.PowerOn, want: stepReplace},
		"dead, off":                      {state: container.StateDead, power: driver.PowerOff, want: kit.StepNone},
		"removing, on":                   {state: container.StateRemoving, power: driver.PowerOn, pending: image, want: kit.StepNone},
		"running, on":                    {state: container.StateRunning, power: driver.PowerOn, want: kit.StepNone},
		"running, on, changed":           {state: container.StateRunning, power: driver.PowerOn, pending: image, want: kit.StepNone},
		"running, on, end this run":      {state: container.StateRunning, power: driver.PowerOn, endRun: thisRun, want: kit.StepStop},
		"running, on, end another run":   {state: container.StateRunning, power: driver.PowerOn, endRun: "another", want: kit.StepNone},
		"running, on, stopping":          {state: container.StateRunning, power: driver.PowerOn, stopping: true, want: kit.StepWait},
		"running, off":                   {state: container.StateRunning, power: driver.PowerOff, want: kit.StepStop},
		"running, paused":                {state: container.StateRunning, power: driver.PowerPaused, want: kit.StepPause},
		"paused, on":                     {state: container.StatePaused, power: driver.PowerOn, want: kit.StepResume},
		"paused, off":                    {state: container.StatePaused, power: driver.PowerOff, want: kit.StepStop},
		"paused, paused":                 {state: container.StatePaused, power: driver.PowerPaused, want: kit.StepNone},
		"paused, paused, end this run":   {state: container.StatePaused, power: driver.PowerPaused, endRun: thisRun, want: kit.StepStop},
		"restarting, on":                 {state: container.StateRestarting, power: driver.PowerOn, want: kit.StepNone},
		"restarting, on, changed":        {state: container.StateRestarting, power: driver.PowerOn, pending: image, want: kit.StepStop},
		"restarting, off":                {state: container.StateRestarting, power: driver.PowerOff, want: kit.StepStop},
		"restarting, paused":             {state: container.StateRestarting, power: driver.PowerPaused, want: kit.StepNone},
		"restarting, on, end this run":   {state: container.StateRestarting, power: driver.PowerOn, endRun: thisRun, want: kit.StepStop},
		"running, paused, another ended": {state: container.StateRunning, power: driver.PowerPaused, endRun: "another", want: kit.StepPause},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Driver{Options: Options{Clock: clock.RealClock{}}}
			i := &instance{driver: d, id: run, startedAt: started, state: c.state}
			if c.stopping {
				d.stops.Store(run, stopRequest{runID: thisRun})
			}
			spec := driver.ServerSpec{Power: c.power, RestartRun: c.endRun}
			got := i.nextStep(spec, c.pending)
			assert.True(t, got == c.want, "got %s, want %s", got, c.want)
		})
	}
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	at := time.Unix(1, 0)
	for name, c := range map[string]struct {
		i    instance
		want string // no exit
	}{
		"running":       {instance{state: container.StateRunning, startedAt: at}, ""},
		"never started": {instance{state: container.StateExited}, ""},
		"completed":     {instance{state: container.StateExited, startedAt: at}, "Completed"},
		"failed":        {instance{state: container.StateDead, startedAt: at, exitCode: 3}, "Error"},
		"out of memory": {instance{state: container.StateRestarting, startedAt: at, exitCode: 137, oomKilled: true}, "OOMKilled"},
	} {
		if e := c.i.exitStatus(); (e == nil) != (c.want == "") || e != nil && (e.Reason != c.want || e.Code != c.i.exitCode) {
			t.Errorf("%s: it ended with %+v, want %q", name, e, c.want)
		}
	}
}

// TestHealthText checks what a check of the image says of a container in each state.
func TestHealthText(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state  container.ContainerState
		health *container.Health
		want   string
	}{
		"no check":  {container.StateRunning, nil, ""},
		"starting":  {container.StateRunning, &container.Health{Status: container.Starting}, "has not succeeded yet"},
		"healthy":   {container.StateRunning, &container.Health{Status: container.Healthy}, ""},
		"unhealthy": {container.StateRunning, &container.Health{Status: container.Unhealthy}, "HEALTHCHECK of the image fails"},
		"none":      {container.StateRunning, &container.Health{Status: container.NoHealthcheck}, ""},
		"is off":    {container.StateExited, &container.Health{Status: container.Unhealthy}, ""},
	} {
		i := newInstance(&Driver{}, container.InspectResponse{State: &container.State{Status: c.state, Health: c.health}})
		got := i.toServer().NotReady
		assert.True(t, (got == "") == (c.want == "") && strings.Contains(got, c.want), "%s: it is not ready because of %q, want %q", name, got, c.want)
	}
}

func TestPendingFields(t *testing.T) {
	t.Parallel()
	http := driver.Port{Name: "http", Protocol: "TCP", Port: 80, HostPort: 8080}
	dns := driver.Port{Name: "dns", Protocol: "UDP", Port: 53}
	for name, c := range map[string]struct {
		hadImage string
		had      []driver.Port
		image    string
		ports    []driver.Port
		want     []string
	}{
		"same":                {"nginx", []driver.Port{http}, "nginx", []driver.Port{http}, nil},
		"written in full":     {"nginx", nil, "docker.io/library/nginx:latest", nil, nil},
		"another tag":         {"nginx", nil, "nginx:1.29", nil, []string{"image"}},
		"default":             {"nginx", nil, "", nil, nil},
		"by digest":           {"nginx", nil, "nginx@sha256:" + strings.Repeat("a", 64), nil, []string{"image"}},
		"other order":         {"nginx", []driver.Port{http, dns}, "nginx", []driver.Port{dns, http}, nil},
		"other port name":     {"nginx", []driver.Port{http}, "nginx", []driver.Port{{Name: "web", Port: 80, HostPort: 8080}}, nil},
		"other host port":     {"nginx", []driver.Port{http}, "nginx", []driver.Port{{Name: "http", Port: 80, HostPort: 8081}}, []string{"ports"}},
		"other protocol":      {"nginx", []driver.Port{dns}, "nginx", []driver.Port{{Name: "dns", Protocol: "TCP", Port: 53}}, []string{"ports"}},
		"no port and another": {"nginx", []driver.Port{http}, "httpd", nil, []string{"image", "ports"}},
	} {
		t.Run(name, func(t *testing.T) {
			i := &instance{image: c.hadImage, ports: portsText(c.had)}
			spec := driver.ServerSpec{Image: driver.Image{Source: c.image}, Ports: c.ports}
			got := pendingFields(i, spec)
			assert.True(t, slices.Equal(got, c.want), "got %v, want %v", got, c.want)
		})
	}
}

func TestContainerName(t *testing.T) {
	t.Parallel()
	const uid = "0123456789abcdef"
	accepted := regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]+$`)
	seen := map[string]string{}
	for name, c := range map[string]struct{ namespace, name, want string }{
		"plain":         {"default", "test-vm", "test-vm.default.01234567"},
		"dots":          {"c", "a.b", "a.b.c.01234567"},
		"dash 1":        {"c", "a-b", "a-b.c.01234567"},
		"dash 2":        {"b-c", "a", "a.b-c.01234567"},
		"long":          {strings.Repeat("n", 63), strings.Repeat("v", 63), strings.Repeat("v", 63) + "." + strings.Repeat("n", 63) + ".01234567"},
		"longer":        {strings.Repeat("N", 300), strings.Repeat("V", 300), strings.Repeat("V", 63) + "." + strings.Repeat("N", 63) + ".01234567"},
		"no name":       {"", "", "x.x.01234567"},
		"odd":           {"ü/..", "../$(x) y", "x..---x--y.x--...01234567"},
		"leading dash":  {"n", "-v", "x-v.n.01234567"},
		"leading digit": {"0", "0", "0.0.01234567"},
	} {
		spec := driver.ServerSpec{Namespace: c.namespace, Name: c.name}
		spec.UID = uid
		got := containerName(spec)
		assert.True(t, got == c.want || name == "odd", "%s: got %q, want %q", name, got, c.want)
		assert.True(t, accepted.MatchString(got) && !isRetained(got), "%s: Docker would not take %q", name, got)
		other, ok := seen[got]
		assert.True(t, !ok, "%s and %s are both %q", name, other, got)
		seen[got] = name
	}
}

func TestMemoryInUse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stats container.MemoryStats
		want  int64
	}{
		"cgroup v1":             {container.MemoryStats{Usage: 100, Stats: map[string]uint64{"total_inactive_file": 30, "inactive_file": 10}}, 70},
		"cgroup v1, no cache":   {container.MemoryStats{Usage: 100, Stats: map[string]uint64{"total_inactive_file": 0, "inactive_file": 10}}, 100},
		"cgroup v2":             {container.MemoryStats{Usage: 100, Stats: map[string]uint64{"inactive_file": 30}}, 70},
		"more cache than usage": {container.MemoryStats{Usage: 100, Stats: map[string]uint64{"inactive_file": 300}}, 100},
		"nothing known":         {container.MemoryStats{}, 0},
	} {
		assert.Equal(t, name, memoryInUse(c.stats), c.want)
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int64]string{40e9: "40G", 40 << 30: "40Gi", 4e9: "4G", 64 << 40: "64Ti", 512 << 20: "512Mi", 500e6: "500M", 6 << 20: "6Mi"} {
		got := kit.FormatBytes(bytes)
		assert.True(t, got == want, "%d bytes: got %s, want %s", bytes, got, want)
	}
	bindings := network.PortMap{
		network.MustParsePort("80/tcp"): {{HostIP: netip.IPv4Unspecified(), HostPort: "32768"}, {HostIP: netip.IPv6Unspecified(), HostPort: "32768"}, {HostPort: "32769"}, {HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: "32769"}},
		network.MustParsePort("53/udp"): {{HostPort: "5353"}},
		network.MustParsePort("81/tcp"): nil,
	}
	differing := network.PortMap{network.MustParsePort("80/tcp"): {{HostIP: netip.IPv6Unspecified(), HostPort: "32768"}, {HostIP: netip.IPv4Unspecified(), HostPort: "32769"}}}
	wantDiffering := []driver.Port{{Protocol: "TCP", Port: 80, HostPort: 32769, HostIP: "0.0.0.0"}, {Protocol: "TCP", Port: 80, HostPort: 32768, HostIP: "::"}}
	got := publishedPorts(differing)
	assert.True(t, slices.Equal(got, wantDiffering), "published are %+v, want %+v", got, wantDiffering)
	want := []driver.Port{{Protocol: "UDP", Port: 53, HostPort: 5353}, {Protocol: "TCP", Port: 80, HostPort: 32768}, {Protocol: "TCP", Port: 80, HostPort: 32769}, {Protocol: "TCP", Port: 80, HostPort: 32769, HostIP: "127.0.0.1"}}
	got = publishedPorts(bindings)
	assert.True(t, slices.Equal(got, want), "published are %+v, want %+v", got, want)
}

// TestHostIP checks that a port is published on the requested address, and that another
// address is a change.
func TestHostIP(t *testing.T) {
	t.Parallel()
	ports := func(ip string) []driver.Port {
		return []driver.Port{{Protocol: "TCP", Port: 80, HostPort: 8080, HostIP: ip}}
	}
	for _, ip := range []string{"127.0.0.1", "::1"} {
		_, bindings := portMaps(ports(ip))
		want := []network.PortBinding{{HostIP: netip.MustParseAddr(ip), HostPort: "8080"}}
		got := bindings[network.MustParsePort("80/tcp")]
		assert.True(t, slices.Equal(got, want), "%s: got %v", ip, got)
	}
	_, bindings := portMaps(ports(""))
	assert.True(t, !bindings[network.MustParsePort("80/tcp")][0].HostIP.IsValid(), "without one it is published on one address")
	got := pendingFields(&instance{ports: portsText(ports(""))}, driver.ServerSpec{Ports: ports("127.0.0.1")})
	assert.True(t, slices.Equal(got, []string{"ports"}), "pending are %v", got)
}

// TestExplainStart uses the error messages of engines from 20.10 to 29.
func TestExplainStart(t *testing.T) {
	t.Parallel()
	spec := driver.ServerSpec{Ports: []driver.Port{
		{Port: 80, HostPort: 808},
		{Port: 81, HostPort: 8080},
		{Port: 82, HostPort: 9090, HostIP: "127.0.0.1"},
		{Port: 83, HostPort: 9090, HostIP: "10.0.0.1"},
		{Port: 84, HostPort: 9090, HostIP: "::1"},
	}}
	for name, c := range map[string]struct {
		err    string
		kind   error
		reason string
		want   string
	}{
		"port of a container": {
			"driver failed programming external connectivity on endpoint x (8f): Bind for 0.0.0.0:8080 failed: port is already allocated",
			driver.ErrRetry, driver.ReasonPortConflict, "spec.ports[1].hostPort: host port 8080 is in use",
		},
		"port of a program": {
			"driver failed programming external connectivity on endpoint x (8f): Error starting userland proxy: listen tcp4 0.0.0.0:808: bind: address already in use",
			driver.ErrRetry, driver.ReasonPortConflict, "spec.ports[0].hostPort: host port 808 is in use",
		},
		"port of a program, 28 and later": {
			"failed to set up container networking: driver failed programming external connectivity on endpoint x (8f): failed to bind host port for 0.0.0.0:8080:172.17.0.2:81/tcp: address already in use",
			driver.ErrRetry, driver.ReasonPortConflict, "spec.ports[1].hostPort: host port 8080 is in use",
		},
		"command that does not exist": {
			`failed to create shim: OCI runtime create failed: container_linux.go:380: starting container process caused: exec: "/nope": stat /nope: no such file or directory: unknown`,
			driver.ErrInvalid, "", `spec.image.source: image img runs the command "/nope", which does not exist;`,
		},
		"command that is in no PATH": {
			`failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: "a \"b\"": executable file not found in $PATH: unknown`,
			driver.ErrInvalid, "", `runs the command "a \"b\"", which is in no folder of PATH;`,
		},
		"command that is not a program": {
			`failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: "/etc": permission denied: unknown`,
			driver.ErrInvalid, "", `runs the command "/etc", which is not an executable file;`,
		},
		"user":  {"unable to find user nosuch: no matching entries in passwd file", driver.ErrInvalid, "", "image img runs as the user nosuch, which its /etc/passwd does not have;"},
		"group": {"unable to find group nosuch: no matching entries in group file", driver.ErrInvalid, "", "image img runs as the group nosuch, which its /etc/group does not have;"},
		"working directory": {
			`OCI runtime create failed: runc create failed: unable to start container process: chdir to cwd ("/root/x") set in config.json failed: permission denied: unknown`,
			driver.ErrInvalid, "", "image img has the working directory /root/x, which cannot be entered;",
		},
		"port of a program on one address": {
			"failed to set up container networking: driver failed programming external connectivity on endpoint x (8f): failed to bind host port for 10.0.0.1:9090:172.17.0.2:83/tcp: address already in use",
			driver.ErrRetry, driver.ReasonPortConflict, "spec.ports[3].hostPort: host port 9090 is in use",
		},
		"port of a program on one IPv6 address": {
			"driver failed programming external connectivity on endpoint x (8f): Bind for [::1]:9090 failed: port is already allocated",
			driver.ErrRetry, driver.ReasonPortConflict, "spec.ports[4].hostPort: host port 9090 is in use",
		},
		"full disk": {"mkdir /var/lib/docker/x: no space left on device", driver.ErrExhausted, "", "no space left"},
	} {
		t.Run(name, func(t *testing.T) {
			err := explainStartError(spec, "img", errors.New(c.err))
			wantError(t, err, c.kind, c.reason, c.want)
			isRaw := strings.Contains(err.Error(), c.err)
			isExplained := errors.Is(c.kind, driver.ErrInvalid) || c.reason != ""
			assert.True(t, isRaw != isExplained, "the text of the engine is in it: %v: %v", isRaw, err)
		})
	}
}

// TestLimits checks that the log is limited only where the engine's log driver knows the options.
func TestLimits(t *testing.T) {
	t.Parallel()
	o := *DefaultOptions()
	o.ClusterID = "c"
	d := newDriver(t, o)
	for logDriver, wants := range map[string]bool{"json-file": true, "local": true, "journald": false, "none": false, "": false} {
		c := limitedLog(logDriver, d.logSize, d.Options.LogFiles)
		if wants && (c.Type != logDriver || c.Config["max-size"] != "10485760" || c.Config["max-file"] != "5") || !wants && (c.Type != "" || c.Config != nil) {
			t.Errorf("with the log driver %q of the engine it is %+v", logDriver, c)
		}
	}
	limit := d.Options.createOptions(driver.ServerSpec{}, "", "").HostConfig.PidsLimit
	assert.True(t, limit != nil && *limit == DefaultPIDs, "the limit of processes is %v, want %d", limit, DefaultPIDs)
	o.PIDs, o.LogSize = 0, ""
	d = newDriver(t, o)
	limit, c := d.Options.createOptions(driver.ServerSpec{}, "", "").HostConfig.PidsLimit, limitedLog("json-file", d.logSize, d.Options.LogFiles)
	assert.True(t, limit == nil && c.Config == nil, "without limits they are %v and %+v", limit, c)
	for want, o := range map[string]Options{
		"--docker-pids-limit is -1":         {PIDs: -1},
		"--docker-log-max-size is \"1k\"":   {LogSize: "1k", LogFiles: 1},
		"--docker-log-max-size is \"much\"": {LogSize: "much", LogFiles: 1},
		"--docker-log-max-file is 0":        {LogSize: "1Mi"},
	} {
		o.ClusterID = "c"
		assert.ErrorSays(t, want, assert.ErrorOf(New(o)), want)
	}
}

// TestInspectionCache checks that an inspection is trusted only if no event can have been
// missed.
func TestInspectionCache(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		happens func(c *inspectionCache)
		after   time.Duration
		want    bool
	}{
		"nothing":                      {func(*inspectionCache) {}, 0, true},
		"an event of another":          {func(c *inspectionCache) { c.invalidateInspection("other") }, 0, true},
		"an event":                     {func(c *inspectionCache) { c.invalidateInspection("id") }, 0, false},
		"the end of the stream":        {func(c *inspectionCache) { c.streamClosed() }, 0, false},
		"another stream":               {func(c *inspectionCache) { c.streamOpened(); c.streamClosed() }, 0, true},
		"a gap between streams":        {func(c *inspectionCache) { c.streamClosed(); c.streamOpened() }, 0, false},
		"a stream before the last one": {func(c *inspectionCache) { c.streamOpened(); c.streamClosed(); c.streamClosed() }, 0, false},
		"time":                         {func(*inspectionCache) {}, maxCacheAge, false},
		"its removal":                  {func(c *inspectionCache) { c.forgetMissing(nil) }, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			after := &inspectionCache{}
			after.streamOpened()
			after.storeInspection(after.beginInspection("id"), &instance{id: "id"}, now)
			c.happens(after)
			_, fresh := after.lastInspection("id", now.Add(c.after))
			assert.True(t, fresh == c.want, "after the inspection: fresh is %v, want %v", fresh, c.want)
			if name == "time" || name == "its removal" {
				return
			}
			between := &inspectionCache{}
			between.streamOpened()
			entry := between.beginInspection("id")
			c.happens(between)
			between.storeInspection(entry, &instance{id: "id"}, now)
			_, fresh = between.lastInspection("id", now)
			assert.True(t, fresh == c.want, "during the inspection: fresh is %v, want %v", fresh, c.want)
		})
	}
}
