// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// TestHelmLifecycle installs, upgrades, rolls back, uninstalls and installs again while VMs exist,
// whose containers must not change.
func TestHelmLifecycle(t *testing.T) {
	tier.Full(t, "it starts a cluster of nodes; TestInstallations of test/manifests applies the chart and the kustomization to an API server")
	t.Parallel()
	d := New(t)
	d.CreateNamespace(t)
	assert.NoError(t, d.installChart(d.formerChart(t), "--set", "image.tag="+imageOther))
	g := d.createGuests(t)

	assert.NoError(t, d.upgrade("--wait", "--timeout", stepTimeout.String(), "--set", "image.tag="+imageDev))
	g.checkSurvived(t, "upgrade", imageDev)

	assert.NoError(t, d.helm("rollback", "drover", "1", "--wait", "--timeout", stepTimeout.String()))
	g.checkSurvived(t, "rollback", imageOther)

	assert.NoError(t, d.helm("uninstall", "drover", "--wait", "--timeout", stepTimeout.String()))
	d.waitUntilGone(t)
	g.requestWithoutDrover(t, "uninstall")

	assert.NoError(t, d.install())
	d.waitUntilImage(t, imageDev)
	g.checkReinstalled(t)
}

// formerChart returns the chart before its last change, but with the current CRD, since the current
// program refuses older CRDs. In a checkout without the commit before, such as a shallow clone, it
// returns the current chart.
func (d *Deployment) formerChart(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	archive := filepath.Join(dir, "chart.tar")
	log, _, err := framework.RunCommand(t, framework.CommandTimeout, nil, "git", "-C", d.root, "log", "--max-count=2", "--format=%H", "--", "charts/drover")
	commits := strings.Fields(log)
	if err != nil || len(commits) < 2 {
		t.Logf("there is no former chart, so the present one takes its place: %v", err)
		return d.chart()
	}
	framework.MustRunCommand(t, framework.CommandTimeout, nil, "git", "-C", d.root, "archive", "--output", archive, commits[1], "charts/drover")
	framework.MustRunCommand(t, framework.CommandTimeout, nil, "tar", "-xf", archive, "-C", dir)
	former := filepath.Join(dir, "charts", "drover")
	framework.MustRunCommand(t, framework.CommandTimeout, nil, "cp", filepath.Join(d.chart(), "files", "crd.yaml"), filepath.Join(former, "files", "crd.yaml"))
	return former
}

// TestKustomizeLifecycle is TestHelmLifecycle with kustomize and the commands of
// docs/cluster-operations.md.
func TestKustomizeLifecycle(t *testing.T) {
	tier.Full(t, "it starts a cluster of nodes; TestInstallations of test/manifests applies the chart and the kustomization to an API server")
	t.Parallel()
	d := New(t)
	d.applyOverlay(t, imageOther)
	d.nameEngine(t)
	d.waitUntilImage(t, imageOther)
	g := d.createGuests(t)

	d.applyOverlay(t, imageDev)
	g.checkSurvived(t, "the change of the image", imageDev)

	d.applyOverlay(t, imageOther)
	g.checkSurvived(t, "the change back", imageOther)

	d.kubectl(t, "delete", "-k", filepath.Join(d.root, "config", "manager"))
	d.waitUntilGone(t)
	g.requestWithoutDrover(t, "the removal of the controller")

	d.applyOverlay(t, imageDev)
	d.waitUntilImage(t, imageDev)
	g.checkReinstalled(t)
}

// applyOverlay applies config/default with an image.
func (d *Deployment) applyOverlay(t testing.TB, tag string) {
	t.Helper()
	dir := t.TempDir()
	base, err := filepath.Rel(dir, filepath.Join(d.root, "config", "default"))
	assert.NoError(t, err)
	writeFile(t, filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- %s
images:
- name: drover-controller
  newTag: %s
`, base, tag))
	d.kubectl(t, "apply", "-k", dir)
}

// nameEngine sets the address of the engine in a Drover that kustomize has installed.
func (d *Deployment) nameEngine(t testing.TB) {
	t.Helper()
	file := func(name string) string { return "--from-file=" + filepath.Join(d.Engine.Certificates, name) }
	d.kubectl(t, "-n", namespace, "create", "secret", "generic", engineSecret, file("ca.pem"), file("cert.pem"), file("key.pem"))
	d.kubectl(t, "-n", namespace, "create", "configmap", "drover-engine", "--from-literal=DOCKER_HOST="+d.Engine.URL,
		"--from-literal=DOCKER_TLS_VERIFY=1", "--from-literal=DOCKER_CERT_PATH=/etc/drover/engine")
	d.kubectl(t, "-n", namespace, "rollout", "restart", "deployment/drover-controller")
}

// kubectl runs kubectl as an administrator, and returns what it printed.
func (d *Deployment) kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, _ := framework.RunKubectl(t, d.Cluster.Kubeconfig, args...)
	return strings.TrimSpace(out)
}
