// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/process"
	"cloudnative.tw/drover/test/assert"
)

const fuzzCluster = "cluster-1"

func newFuzzDriver(f *testing.F) *Driver {
	f.Helper()
	d, err := New(Options{ClusterID: fuzzCluster})
	assert.NoError(f, err)
	return d
}

// FuzzContainerConfig checks that no text of a spec adds a setting to a container, that the
// container says what the spec says when it is read back, and that what is refused is refused
// by the field's name.
func FuzzContainerConfig(f *testing.F) {
	f.Add("vm", "default", "nginx", "127.0.0.1", uint16(80), uint16(8080), int64(500), int64(32e6), int64(0))
	f.Add("a,b=c\n", "-", "", "", uint16(0), uint16(0), int64(1), int64(6<<20), int64(1<<50))
	f.Add("x", "y", "docker://nginx", "::1%eth0", uint16(65535), uint16(1), int64(4096000), int64(1<<46), int64(-1))
	f.Add("x", "y", "host/name:tag@sha256:"+strings.Repeat("0", 64), "fe80::1", uint16(1), uint16(1), int64(0), int64(0), int64(0))
	d := newFuzzDriver(f)
	f.Fuzz(func(t *testing.T, name, namespace, image, hostIP string, port, hostPort uint16, cpu, memory, disk int64) {
		if _, err := netip.ParseAddr(hostIP); !utf8.ValidString(name+namespace+image) || hostIP != "" && err != nil {
			return // the API has none
		}
		spec := driver.ServerSpec{
			Target: driver.Target{UID: "uid-1", Epoch: 7}, Namespace: namespace, Name: name, CPUMilli: cpu, MemoryBytes: memory, RootDiskBytes: disk,
			Image:   driver.Image{Source: image},
			Ports:   []driver.Port{{Name: "http", Protocol: "TCP", Port: max(1, int32(port)), HostPort: int32(hostPort), HostIP: hostIP}, {Name: "dns", Protocol: "UDP", Port: 53}},
			Command: []string{image, name}, Args: []string{namespace}, Env: envOf("A="+name, namespace+"B="+image), WorkingDir: "/" + name, User: name, Init: driver.InitDrover, Stdin: true, TTY: true, Sysctls: []driver.Sysctl{{Name: "net.a", Value: name}},
		}
		if err := d.Options.checkSpec(spec); err != nil {
			assert.True(t, strings.HasPrefix(err.Error(), "spec.image.source") && errors.Is(err, driver.ErrInvalid), "%+v: the error names no field: %v", spec, err)
			return
		}
		o := d.Options.createOptions(spec, containerName(spec), d.Options.imageReference(spec))
		checkOptions(t, o, spec)
		checkReadBack(t, d, o, spec)
	})
}

// knownSettings are all that Drover sets of a container.
var knownSettings = []string{
	"Config.Cmd", "Config.Entrypoint", "Config.Env", "Config.ExposedPorts", "Config.Hostname", "Config.Image", "Config.Labels", "Config.OpenStdin", "Config.StdinOnce", "Config.Tty", "Config.User", "Config.WorkingDir",
	"HostConfig.Init", "HostConfig.Memory", "HostConfig.MemorySwap", "HostConfig.NanoCpus", "HostConfig.PortBindings", "HostConfig.RestartPolicy", "HostConfig.Sysctls",
}

var (
	validName   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]+$`)
	validPortIn = regexp.MustCompile(`^[0-9]+/(tcp|udp)$`)
)

func checkOptions(t *testing.T, o client.ContainerCreateOptions, spec driver.ServerSpec) {
	t.Helper()
	assert.True(t, validName.MatchString(o.Name) && !isRetained(o.Name), "%+v makes the name %q", spec, o.Name)
	for _, name := range append(settings(t, "Config", o.Config), settings(t, "HostConfig", o.HostConfig)...) {
		assert.True(t, slices.Contains(knownSettings, name), "%+v sets %s", spec, name)
	}
	known := append(slices.Collect(maps.Keys(containerLabels(driver.ServerSpec{}, "", ""))), process.LabelArgs, process.LabelCommand, process.LabelEnv, process.LabelWorkingDir, process.LabelUser, process.LabelInit, process.LabelSysctls)
	labels := slices.Sorted(maps.Keys(o.Config.Labels))
	assert.True(t, slices.Equal(labels, slices.Sorted(slices.Values(known))), "%+v makes the labels %q", spec, labels)
	for port := range o.HostConfig.PortBindings {
		assert.True(t, validPortIn.MatchString(port.String()), "%+v publishes %s", spec, port)
	}
	assert.True(t, len(o.HostConfig.PortBindings) == len(spec.Ports) && len(o.Config.ExposedPorts) == len(spec.Ports),
		"%+v publishes %v", spec, o.HostConfig.PortBindings)
}

// settings returns the names of the settings that are not empty on the wire.
func settings(t *testing.T, prefix string, config any) (names []string) {
	t.Helper()
	text, err := json.Marshal(config)
	var fields map[string]any
	assert.NoError(t, errors.Join(err, json.Unmarshal(text, &fields)))
	for name, value := range fields {
		if !isEmpty(value) {
			names = append(names, prefix+"."+name)
		}
	}
	return names
}

// isEmpty reports whether a JSON value, and all in it, is null, zero or empty.
func isEmpty(value any) bool {
	v := reflect.ValueOf(value)
	switch {
	case value == nil || v.IsZero():
		return true
	case v.Kind() == reflect.Map:
		return !slices.ContainsFunc(v.MapKeys(), func(key reflect.Value) bool { return !isEmpty(v.MapIndex(key).Interface()) })
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			if !isEmpty(v.Index(i).Interface()) {
				return false
			}
		}
		return true
	}
	return false
}

// checkReadBack checks that the container, as the engine would return it, is the server of the
// spec, and waits for no restart.
func checkReadBack(t *testing.T, d *Driver, o client.ContainerCreateOptions, spec driver.ServerSpec) {
	t.Helper()
	sent := container.InspectResponse{ID: strings.Repeat("0", 64), Name: "/" + o.Name, Config: o.Config, HostConfig: o.HostConfig, State: &container.State{Status: container.StateCreated}}
	text, err := json.Marshal(sent)
	var back container.InspectResponse
	err = errors.Join(err, json.Unmarshal(text, &back))
	assert.Require(t, err == nil, "%+v: %v", spec, err)
	i := newInstance(d, back)
	s := i.toServer()
	assert.True(t, s.UID == spec.UID && s.Namespace == spec.Namespace && s.Name == spec.Name && i.cluster == fuzzCluster && !s.Retained,
		"%+v comes back as %+v", spec, s)
	want := (driver.Resources{CPUMilli: spec.CPUMilli, MemoryBytes: spec.MemoryBytes})
	assert.True(t, s.Applied == want || spec.CPUMilli >= 1<<40 || spec.CPUMilli <= -1<<40, "it has %+v, want %+v", s.Applied, want)
	pending := pendingFields(i, spec)
	assert.True(t, len(pending) == 0, "%+v: a new container waits for a restart because of %q", spec, pending)
}

// FuzzLabels checks that a container with any labels, as an image's maker or another program
// may set them, is read as what the labels say, and as nothing else.
func FuzzLabels(f *testing.F) {
	f.Add("uid-1", "default", "vm", fuzzCluster, "nginx", "80/tcp:8080@::1", "40000000000", "/vm.default.uid-1", "running", "2026-01-31T12:00:00.1Z")
	f.Add("../x", "", "", "", "", ",", "-1", "x.retained", "dead", "0001-01-01T00:00:00Z")
	f.Add("", "a/b", "\x1b[2J", "x", "\n", "", "1e3", "//a/b", "", "0000-00-00")
	d := newFuzzDriver(f)
	f.Fuzz(func(t *testing.T, uid, namespace, name, cluster, image, ports, disk, containerName, state, started string) {
		labels := map[string]string{LabelUID: uid, LabelNamespace: namespace, LabelName: name, LabelCluster: cluster, LabelImage: image, LabelPorts: ports, LabelRootDisk: disk}
		i := newInstance(d, container.InspectResponse{
			ID: "0123456789abcdef", Name: containerName, Config: &container.Config{Labels: labels},
			State: &container.State{Status: container.ContainerState(state), StartedAt: started},
		})
		listed := instanceFromSummary(d, container.Summary{ID: i.id, Names: []string{containerName}, Labels: labels, State: i.state})
		for _, s := range []driver.Server{i.toServer(), listed.toServer()} {
			checkLabelled(t, s, labels)
			assert.True(t, s.Retained == isRetained(containerName) || strings.Contains(strings.TrimPrefix(containerName, "/"), "/"),
				"%q is read as %+v", containerName, s)
		}
		assert.True(t, i.cluster == cluster && i.image == image && i.ports == ports, "%q is read as %+v", labels, i)
	})
}

// checkLabelled checks that a server is as labels say.
func checkLabelled(t *testing.T, s driver.Server, labels map[string]string) {
	t.Helper()
	assert.True(t, s.UID == types.UID(labels[LabelUID]) && s.Namespace == labels[LabelNamespace] && s.Name == labels[LabelName] && s.ID != "",
		"%q is read as %+v", labels, s)
	size, err := strconv.ParseInt(labels[LabelRootDisk], 10, 64)
	assert.True(t, (s.Note != "") == (err == nil && size > 0), "a root disk of %q is noted as %q", labels[LabelRootDisk], s.Note)
	assert.True(t, s.State != "" && (s.Exit == nil || !s.StartedAt.IsZero()), "%q is read as %+v", labels, s)
}
