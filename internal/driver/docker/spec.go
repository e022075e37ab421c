// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// checkArguments rejects arguments that are invalid for any server.
func checkArguments(spec driver.ServerSpec) error {
	if err := driver.CheckUID(spec.UID); err != nil {
		return err
	}
	return driver.CheckPower(spec.Power)
}

// checkSpec rejects a spec that no container can have.
func (d *Driver) checkSpec(spec driver.ServerSpec) error {
	if scheme, _, is := strings.Cut(d.imageReference(spec), "://"); is {
		return driver.Errorf(driver.ErrInvalid, "spec.image.source begins with %q, which the docker driver does not take: it must be an image reference such as nginx or registry.example.org/team/app:v1", scheme+"://")
	}
	if _, err := reference.ParseAnyReference(d.imageReference(spec)); err != nil {
		return driver.Errorf(driver.ErrInvalid, "spec.image.source: %q is not an image reference such as nginx or registry.example.org/team/app:v1: %w", d.imageReference(spec), err)
	}
	for i, p := range spec.Ports {
		if _, err := netip.ParseAddr(p.HostIP); p.HostIP != "" && err != nil {
			return driver.Errorf(driver.ErrInvalid, "spec.ports[%d].hostIP is %.60q: it must be an IP address of the engine's host, or empty for all", i, p.HostIP)
		}
	}
	return fields.CheckSupported(spec)
}

// imageReference returns the image reference of the spec, or the default.
func (d *Driver) imageReference(spec driver.ServerSpec) string {
	return cmp.Or(spec.Image.Source, d.Image)
}

// checkCapacity compares the spec with the host's capacity before the engine is called:
// Docker refuses too many CPUs with a text of its own and accepts any amount of memory.
func (d *Driver) checkCapacity(ctx context.Context, spec driver.ServerSpec) error {
	host, err := d.engine.Machine(ctx)
	switch {
	case err != nil:
		return err
	case spec.CPUMilli > int64(host.CPUs)*1000:
		return driver.Errorf(driver.ErrExhausted, "spec.resource.cpu: %s needed, the Docker host has %d", formatCPU(spec.CPUMilli), host.CPUs)
	case host.Memory > 0 && spec.MemoryBytes > host.Memory:
		return driver.Errorf(driver.ErrExhausted, "spec.resource.memory: %s needed, the Docker host has %s", formatBytes(spec.MemoryBytes), formatMegabytes(host.Memory))
	}
	return nil
}

func formatCPU(milli int64) string {
	return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64)
}

// formatBytes writes 40000000000 as 40G and 42949672960 as 40Gi.
func formatBytes(bytes int64) string {
	format := resource.DecimalSI
	if bytes%1000 != 0 && bytes%1024 == 0 || bytes%(1<<30) == 0 {
		format = resource.BinarySI
	}
	return resource.NewQuantity(bytes, format).String()
}

// formatMegabytes formats a measured size, which needs no exact unit.
func formatMegabytes(bytes int64) string { return fmt.Sprintf("%dM", bytes/1e6) }

// Labels of a container. All are set on every one, so that labels of the image
// cannot take their place.
const (
	LabelUID       = "cloudnative.tw/uid"
	LabelNamespace = "cloudnative.tw/namespace"
	LabelName      = "cloudnative.tw/name"
	LabelCluster   = "cloudnative.tw/cluster"
	LabelEpoch     = "cloudnative.tw/epoch"
	// LabelImage, LabelPorts and LabelRootDisk record what was requested at
	// creation, to detect later whether the spec has changed.
	LabelImage    = "cloudnative.tw/image"
	LabelPorts    = "cloudnative.tw/ports"
	LabelRootDisk = "cloudnative.tw/root-disk"
)

// RetainedSuffix ends the name of a released container. Docker cannot change a
// label, and a rename is atomic.
const RetainedSuffix = ".retained"

func containerLabels(spec driver.ServerSpec, cluster, image string) map[string]string {
	return map[string]string{
		LabelUID:       string(spec.UID),
		LabelNamespace: spec.Namespace,
		LabelName:      spec.Name,
		LabelCluster:   cluster,
		LabelEpoch:     strconv.FormatUint(spec.Epoch, 10),
		LabelImage:     image,
		LabelPorts:     portsText(spec.Ports),
		LabelRootDisk:  strconv.FormatInt(spec.RootDiskBytes, 10),
	}
}

// containerName is for people. Its uniqueness matters only against a second leader
// that creates the same server at the same time.
func containerName(spec driver.ServerSpec) string {
	uid := string(spec.UID)
	return namePart(spec.Name, 63) + "." + namePart(spec.Namespace, 63) + "." + namePart(uid, 8)
}

var invalidInNames = regexp.MustCompile(`[^a-zA-Z0-9_.-]`)

// namePart makes s valid in a container name. The API's own rules leave little to
// replace.
func namePart(s string, limit int) string {
	s = invalidInNames.ReplaceAllString(s, "-")
	if s == "" || strings.ContainsRune("_.-", rune(s[0])) {
		s = "x" + s
	}
	return s[:min(len(s), limit)]
}

var validHostname = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

// containerHostname is the VM's name, as for a Pod; empty lets Docker choose.
func containerHostname(name string) string {
	if validHostname.MatchString(name) {
		return name
	}
	return ""
}

func isRetained(name string) bool { return strings.HasSuffix(name, RetainedSuffix) }

// portsText writes ports in a fixed order, so that texts can be compared. A port's
// name is used only by Drover and is left out.
func portsText(ports []driver.Port) string {
	texts := make([]string, 0, len(ports))
	for _, p := range ports {
		texts = append(texts, fmt.Sprintf("%d/%s:%d@%s", p.Port, portProtocol(p), p.HostPort, p.HostIP))
	}
	slices.Sort(texts)
	return strings.Join(texts, ",")
}

func portProtocol(p driver.Port) string {
	return strings.ToLower(cmp.Or(p.Protocol, "tcp"))
}

func uidFilter(uid types.UID) string { return LabelUID + "=" + string(uid) }

// specChange is a container and the spec that it shall have.
type specChange struct {
	has   *instance
	wants driver.ServerSpec
}

// hasOtherImage compares with what was requested at creation, which no engine
// normalises. An empty image means the default at that time, so a new default is not a
// change of the spec.
func (c specChange) hasOtherImage() bool {
	image := c.wants.Image.Source
	return image != "" && fullReference(image) != fullReference(c.has.image)
}

func (c specChange) hasOtherPorts() bool { return portsText(c.wants.Ports) != c.has.ports }

var fields = slices.Concat(driver.Fields[specChange]{
	{Name: "action", Support: driver.AppliedLive},
	{Name: "shutdownGracePeriodSeconds", Support: driver.AppliedLive}, // by StopBy; a host's shutdown is the engine's
	{Name: "restartPolicy", Support: driver.AppliedLive},
	{Name: "resource", Support: driver.AppliedLive, Parts: []string{"cpu", "memory"}},
	{Name: "resource.rootDisk", Support: driver.Noted},
	{Name: "image", Support: driver.AppliedAtRestart, Parts: []string{"source"}, Differs: specChange.hasOtherImage},
	{Name: "image.pullPolicy", Support: driver.AppliedLive},
	{Name: "ports", Support: driver.AppliedAtRestart, Parts: []string{"protocol", "port", "hostPort", "hostIP"}, Differs: specChange.hasOtherPorts},
	{Name: "ports.name", Support: driver.AppliedLive}, // used only by Drover
	{Name: "image.checksum", Support: driver.Unsupported, Hint: "the docker driver cannot check it; name the image by digest (name@sha256:...) or leave it out"},
	{Name: "image.kernel", Support: driver.Unsupported, Hint: "containers boot no kernel of their own; use driver qemu or leave it out"},
	{Name: "volumes", Support: driver.Unsupported, Hint: "the docker driver has no disks; use driver qemu or leave it out"},
	{Name: "userData", Support: driver.Unsupported, Hint: "the docker driver cannot run cloud-init; use driver qemu or leave it out"},
	{Name: "networkData", Support: driver.Unsupported, Hint: "the docker driver cannot run cloud-init; use driver qemu or leave it out"},
	{Name: "sshAuthorizedKeys", Support: driver.Unsupported, Hint: "the docker driver cannot install SSH keys; use driver qemu or leave it out"},
}, driver.UnsupportedPodFields[specChange]())

// SupportedFields implements driver.FieldDeclarer.
func (d *Driver) SupportedFields() map[string]driver.Support { return fields.Support() }

// pendingFields returns the fields of the spec that need a new container.
func pendingFields(i *instance, spec driver.ServerSpec) []string {
	return fields.Pending(specChange{has: i, wants: spec})
}

// fullReference returns one text for all ways to write a reference: nginx is
// docker.io/library/nginx:latest.
func fullReference(image string) string {
	if named, err := reference.ParseDockerRef(image); err == nil {
		return named.String()
	}
	return image
}

func (d *Driver) createOptions(spec driver.ServerSpec, name, image string) client.ContainerCreateOptions {
	exposed, bindings := portMaps(spec.Ports)
	return client.ContainerCreateOptions{
		Name: name,
		Config: &container.Config{
			Image:        image,
			Hostname:     containerHostname(spec.Name),
			Labels:       containerLabels(spec, d.ClusterID, image),
			ExposedPorts: exposed,
			OpenStdin:    true, // the console's input; a container without is left as it is
		},
		HostConfig: &container.HostConfig{
			Resources:     resourceLimits(spec),
			RestartPolicy: container.RestartPolicy{Name: restartPolicy(spec.RestartPolicy)},
			PortBindings:  bindings,
		},
	}
}

// resourceLimits allows no swap: MemorySwap is the sum of memory and swap.
func resourceLimits(spec driver.ServerSpec) container.Resources {
	return container.Resources{NanoCPUs: spec.CPUMilli * 1e6, Memory: spec.MemoryBytes, MemorySwap: spec.MemoryBytes}
}

func restartPolicy(p driver.RestartPolicy) container.RestartPolicyMode {
	switch p {
	case driver.RestartOnFailure:
		return container.RestartPolicyOnFailure
	case driver.RestartNever:
		return container.RestartPolicyDisabled
	case driver.RestartAlways:
	}
	return container.RestartPolicyUnlessStopped
}

// portMaps publishes ports, on all addresses of the host if none is given. An empty
// host port lets the engine choose.
func portMaps(ports []driver.Port) (network.PortSet, network.PortMap) {
	exposed, bindings := network.PortSet{}, network.PortMap{}
	for _, p := range ports {
		port, ok := network.PortFrom(uint16(p.Port), network.IPProtocol(portProtocol(p))) //nolint:gosec // the API allows 1 to 65535
		if !ok {
			continue
		}
		binding := network.PortBinding{HostIP: publishedIP(p)}
		if p.HostPort != 0 {
			binding.HostPort = strconv.Itoa(int(p.HostPort))
		}
		exposed[port] = struct{}{}
		bindings[port] = append(bindings[port], binding)
	}
	return exposed, bindings
}

// publishedIP returns the address to publish a port on; the zero value means all.
func publishedIP(p driver.Port) netip.Addr {
	ip, _ := netip.ParseAddr(p.HostIP) // checkSpec has validated it
	return ip
}
