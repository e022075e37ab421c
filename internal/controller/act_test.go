// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/secrets"
	"cloudnative.tw/drover/internal/controller/translate"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// completeSpec sets every field that a driver may need.
func completeSpec() api.VirtualMachineSpec {
	image := &api.Image{
		Source: "s", Checksum: "c", PullPolicy: api.PullAlways,
		Kernel: &api.Kernel{Source: "k", Initrd: "i", Cmdline: "c"},
	}
	one := resource.MustParse("1")
	return api.VirtualMachineSpec{
		Resource:                   corev1.ResourceList{api.ResourceCPU: one, api.ResourceMemory: one, api.ResourceRootDisk: one},
		Image:                      image,
		Command:                    []string{"c"},
		Args:                       []string{"a"},
		Env:                        []api.EnvVar{{Name: "n", Value: "v"}},
		WorkingDir:                 "/w",
		User:                       "u",
		Init:                       api.InitDrover,
		Stdin:                      true,
		TTY:                        true,
		Sysctls:                    []api.Sysctl{{Name: "n", Value: "v"}},
		Volumes:                    []api.Volume{{Name: "v", Size: one, Source: &api.VolumeSource{Image: image}, ReadOnly: true, MountPath: "/v"}},
		UserData:                   &api.DataSource{Inline: new("u")},
		Files:                      []api.FileMount{{MountPath: "/m"}},
		NetworkData:                &api.DataSource{Inline: new("n")},
		SSHAuthorizedKeys:          []string{"k"},
		Ports:                      []api.Port{{Name: "p", Protocol: api.ProtocolTCP, Port: 1, HostPort: 2, HostIP: "::1"}},
		RestartPolicy:              api.RestartNever,
		ShutdownGracePeriodSeconds: new(int64(1)),
		Ephemeral:                  true,
		StorageClassName:           new(""),
		EvictionPolicy:             api.EvictionBlock,
		NodeSelector:               map[string]string{"k": "v"},
		Affinity:                   &corev1.Affinity{},
		Tolerations:                []corev1.Toleration{{Key: "k"}},
		TopologySpreadConstraints:  []corev1.TopologySpreadConstraint{{TopologyKey: "k"}},
		PriorityClassName:          "p",
		RuntimeClassName:           "r",
		ReadinessProbe:             &api.Probe{TCPSocket: api.TCPSocket{Port: 80}, PeriodSeconds: 3},
	}
}

// TestServerSpecIsComplete checks that every field that a driver may need is passed to
// it.
func TestServerSpecIsComplete(t *testing.T) {
	vm := &api.VirtualMachine{Spec: completeSpec()}
	spec := translate.ServerSpec(vm)
	assert.NoError(t, secrets.Resolve(t.Context(), nil, vm, &spec))
	spec.Power = driver.PowerOn // the decision's
	for _, name := range driver.SpecFields() {
		// A field is set if a driver that does not support it refuses the spec.
		refusing := driver.Fields[struct{}]{{Name: name, Support: driver.Unsupported}}
		assert.True(t, refusing.CheckSupported(spec) != nil, "spec.%s is not passed to the driver: set it in translate/spec.go, and in completeSpec of this test", name)
	}
	want := (driver.Probe{Port: 80, PeriodSeconds: 3, TimeoutSeconds: 1})
	assert.True(t, spec.ReadinessProbe != nil && *spec.ReadinessProbe == want, "the driver gets readinessProbe %+v, want %+v", spec.ReadinessProbe, want)
}

func TestShortID(t *testing.T) {
	for id, want := range map[string]string{
		"851671285a46d1f0c9": "851671285a46", "web": "web", "default/web-1a2b3c4d": "default/web-1a2b3c4d",
	} {
		got := shortID(id)
		assert.True(t, got == want, "shortID(%q) = %q, want %q", id, got, want)
	}
}
