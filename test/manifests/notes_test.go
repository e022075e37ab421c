// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestNotes checks that the notes of helm install about Secrets agree with the rights that the chart grants.
func TestNotes(t *testing.T) {
	t.Parallel()
	const (
		none   = "The controller may read no Secrets."
		seed   = "The controller gets Secret drover-machine-control in kube-system"
		others = "The controller may read no other Secrets."
	)
	pods := "vmDriver=pod,pod.machineImage=drover-machine:dev"
	tests := map[string]struct {
		set         string
		want, never []string
	}{
		"docker":                          {"vmDriver=docker,docker.host=tcp://x:2376", []string{none}, []string{"drover-machine-control"}},
		"docker, with secretNamespaces":   {"vmDriver=docker,docker.host=tcp://x:2376,secretNamespaces={blue}", []string{"may get every Secret in blue."}, []string{none, others, "drover-machine-control"}},
		"pod":                             {pods, []string{seed, "It creates what is missing of that.", "For each pod it creates a Secret, in the namespace of the VM.", others}, []string{none}},
		"pod, with namespaces":            {pods + ",pod.namespaces={blue,green}", []string{seed, "It may not create that: docs/cluster.md", "in blue, green alone.", others}, []string{none, "what is missing"}},
		"pod, with streams":               {pods + ",pod.streams=true,streams.enabled=true,streams.certSecret=x", []string{seed, "and drover-machine-guests, from which those of their guests do. It creates what is missing of that."}, []string{none}},
		"pod and docker, with both lists": {`vmDriver=docker\,pod,pod.machineImage=x,docker.host=tcp://x:2376,pod.namespaces={blue},secretNamespaces={blue}`, []string{seed, "may get every Secret in blue, and no other."}, []string{none, others}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, _ := framework.RunHelm(t, os.DevNull, "install", "drover", chart, "--namespace", namespace, "--dry-run=client", "--set", tc.set)
			_, notes, _ := strings.Cut(out, "NOTES:")
			text := strings.Join(strings.Fields(notes), " ")
			for _, want := range tc.want {
				assert.True(t, strings.Contains(text, want), "the notes lack %q:\n%s", want, notes)
			}
			for _, never := range tc.never {
				assert.True(t, !strings.Contains(text, never), "the notes contain %q:\n%s", never, notes)
			}
		})
	}
}
