// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// testDisruptions disrupts a guest whose disk is on its node.
func testDisruptions(t *testing.T, g *guest) {
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *guest)
	}{
		{"forced deletion", testForcedDeletion},
		{"foreigners", testForeigners},
		{"kubelet", testKubelet},
		{"link", testLink},
		{"out of service, with a machine that runs", testRunningOutOfServiceThere},
		{"taint of a healthy node", testTaintOfHealthyNode},
		{"drain", testDrain},
		{"preemption", testPreemption},
		{"controller killed", testControllerKilled},
		{"controller killed in a loss", testControllerKilledUntilReturn},
		{"node deleted", testNodeDeleted},
	} {
		// Each case begins in the final state of the case before.
		if !t.Run(tc.name, func(t *testing.T) { tc.run(t, g) }) {
			return
		}
	}
}

// testForcedDeletion deletes the pod of a running guest by force: the next pod waits for the kubelet.
func testForcedDeletion(t *testing.T, g *guest) {
	before := g.pod(t)
	deleteByForce(t, before)
	g.waitRun(t, before.UID)
}

// testKubelet ends only the kubelet: the guest keeps running, and no other pod is started, even if a
// user deletes the guest's pod.
func testKubelet(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	for _, isDeleted := range []bool{false, true} {
		assert.NoError(t, node.KillKubelet())
		g.waitLost(t, node)
		if isDeleted {
			deleteByForce(t, before)
			g.waitFor(t, framework.HasMessage("out-of-service"))
		}
		g.checkAnswers(t, before)
		now := g.pod(t)
		assert.True(t, now.UID == before.UID, "pod %s exists while %s runs", now.UID, before.UID)
		assert.NoError(t, node.StartKubelet())
		waitForNode(t, node, true)
		if !isDeleted {
			g.checkUndisturbed(t, before)
		}
	}
	g.waitRun(t, before.UID)
}

// testLink cuts the guest's node from the network, and joins it again.
func testLink(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	assert.NoError(t, node.CutLink())
	g.waitLost(t, node)
	assert.NoError(t, node.RestoreLink())
	waitForNode(t, node, true)
	g.checkUndisturbed(t, before)
}

// testTaintOfHealthyNode taints a healthy node as out of service: the kubelet shuts down the guest,
// and then the guest starts again.
func testTaintOfHealthyNode(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	assert.NoError(t, node.Taint(t.Context(), cluster.OutOfService))
	g.waitFor(t, framework.HasCondition(api.ConditionReady, metav1.ConditionFalse), framework.HasMessage("the pod is not scheduled"))
	g.checkShutDown(t)
	assert.NoError(t, node.Untaint(t.Context(), cluster.OutOfService.Key))
	g.waitRun(t, before.UID)
}

// checkShutDown checks that the last run of the guest ended by a shutdown.
func (g *guest) checkShutDown(t *testing.T) {
	t.Helper()
	assert.Contains(t, g.name+" has ended by", g.claim(t).Annotations[objects.AnnotationEnd], "Completed")
}

// claim returns the PersistentVolumeClaim of the guest's disk.
func (g *guest) claim(t testing.TB) *corev1.PersistentVolumeClaim {
	t.Helper()
	claims, err := shared.Client.CoreV1().PersistentVolumeClaims(g.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "cloudnative.tw/name=" + g.name})
	assert.Require(t, err == nil && len(claims.Items) == 1, "%s has the claims %v, %v", g.name, claims, err)
	return &claims.Items[0]
}

// drain runs kubectl drain, which refuses pods with an emptyDir without deleteEmptyDir.
func drain(t *testing.T, node *cluster.Node, deleteEmptyDir bool) {
	t.Helper()
	framework.RunKubectl(t, shared.Kubeconfig, "drain", node.Name, "--ignore-daemonsets", fmt.Sprintf("--delete-emptydir-data=%t", deleteEmptyDir))
}

// testDrain drains the node of a guest whose disk is on that node: the guest waits until the node is back.
func testDrain(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	drain(t, node, false)
	g.checkShutDown(t)
	g.waitFor(t, framework.HasMessage("the pod is not scheduled: 0/3 nodes are available"))
	assert.NoError(t, node.Uncordon(t.Context()))
	g.waitRun(t, before.UID)
}

// testPreemption lets a pod with a higher priority preempt the guest's pod.
func testPreemption(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}
	assert.NoError(t, assert.ErrorOf(shared.Client.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{})))
	object, err := shared.Client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
	assert.NoError(t, err)
	milli := object.Status.Allocatable.Cpu().MilliValue() - 500
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Spec: corev1.PodSpec{
		PriorityClassName: class.Name, TerminationGracePeriodSeconds: new(int64(0)), NodeSelector: map[string]string{corev1.LabelHostname: node.Name},
		Containers: []corev1.Container{{
			Name: "probe", Image: cluster.ProbeImage, Command: []string{"/probe", "serve"},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}},
		}},
	}}
	createReadyPod(t, pod)
	g.waitFor(t, framework.HasMessage("the pod is not scheduled"), framework.HasMessage("Insufficient cpu"))
	g.checkShutDown(t)
	deletePod(t, pod)
	g.waitRun(t, before.UID)
}

// testControllerKilled kills the controller at several moments of a stop and of a start.
func testControllerKilled(t *testing.T, g *guest) {
	for _, delay := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond, time.Second} {
		for _, step := range []struct {
			action api.Action
			check  func(*testing.T)
		}{{api.ActionStopped, g.stop}, {api.ActionActive, g.start}} {
			g.setAction(t, step.action)
			time.Sleep(delay)
			g.killController(t)
			g.startController(t)
			step.check(t)
		}
	}
}

// testNodeDeleted deletes the object of a node while its kubelet and a guest run there. The pod's
// object is then deleted too.
func testNodeDeleted(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	assert.NoError(t, node.Delete(t.Context()))
	assert.Eventually(t, "the pod is deleted", func(t testing.TB) error {
		if pod, err := g.findPod(t); err != nil || pod != nil && pod.UID == before.UID && pod.DeletionTimestamp == nil {
			return fmt.Errorf("it is not deleted: %w", err)
		}
		return nil
	})
	assert.NoError(t, node.RestartKubelet())
	waitForNode(t, node, true)
	g.waitRun(t, before.UID)
}

// TestPodsElsewhere disrupts guests that can be started on another node: one with storage that all nodes
// reach, and one without a persistent disk.
func TestPodsElsewhere(t *testing.T) {
	tier.Full(t, "it takes ten minutes; TestPodDriver keeps the loss of a node, and package pod the proofs of an end")
	w := newPodWorld(t)
	onShared := w.createWriter(t, "shared")
	ephemeral := w.createGuest(t, "ephemeral", func(spec *api.VirtualMachineSpec) { spec.Ephemeral = true })
	both := []*guest{onShared, ephemeral}
	for _, tc := range []struct {
		name   string
		run    func(*testing.T, *guest)
		guests []*guest
	}{
		{"drain", testDrainElsewhere, both},
		{"controller killed in a drain", testControllerKilledInDrain, both},
		{"out of service", testOutOfService, both},
		{"out of service, with a machine that runs", testRunningOutOfService, both[:1]},
		{"controller killed in a loss", testControllerKilledInLoss, both[:1]},
		{"asserted off", testAssertedOff, both},
	} {
		for _, g := range tc.guests {
			g.noteRounds(t)
			if !t.Run(tc.name+", "+g.name, func(t *testing.T) { tc.run(t, g) }) {
				return
			}
			g.other(onShared, ephemeral).settle(t)
		}
	}
	t.Run("long cut", func(t *testing.T) { testLongCut(t, both) })
	onShared.stop(t)
	onShared.checkBlocks(t)
	onShared.delete(t)
	ephemeral.delete(t)
	w.checkNoGuestLeft(t)
}

const sharedClass = "shared"

// addSharedVolume adds a volume of a StorageClass that all nodes reach, since they are on one host.
func addSharedVolume(t *testing.T, class, name string) {
	t.Helper()
	dir := filepath.Join(shared.Dir, "volume-"+name)
	assert.NoError(t, errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 65532, 65532)))
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: class, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
		AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
	}}
	assert.NoError(t, assert.ErrorOf(shared.Client.CoreV1().PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{})))
}

// other returns the other one of two guests.
func (g *guest) other(a, b *guest) *guest {
	if g == a {
		return b
	}
	return a
}

// settle waits until a guest runs that the disruption of another guest may also have disrupted, and
// updates its number of boots.
func (g *guest) settle(t *testing.T) {
	t.Helper()
	assert.Eventually(t, g.name+" answers", func(t testing.TB) error {
		pod, err := g.findPod(t)
		if err != nil || pod == nil {
			return fmt.Errorf("there is no pod: %w", err)
		}
		got, err := getFromHost(t, "http://"+pod.Status.PodIP)
		if _, rest, ok := strings.Cut(got, `"boots":`); ok {
			_, err = fmt.Sscanf(rest, "%d", &g.boots)
		}
		return err
	})
	g.waitFor(t, framework.HasCondition(api.ConditionReady, metav1.ConditionTrue))
}

func (g *guest) waitElsewhere(t *testing.T, before *corev1.Pod) {
	t.Helper()
	pod := g.waitRun(t, before.UID)
	assert.True(t, pod.Spec.NodeName != before.Spec.NodeName, "%s runs on %s again", g.name, pod.Spec.NodeName)
}

func testDrainElsewhere(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	drain(t, node, true)
	g.waitElsewhere(t, before)
	assert.NoError(t, node.Uncordon(t.Context()))
}

// testOutOfService powers a node off and taints it as out of service: the guest starts on another node.
func testOutOfService(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	assert.NoError(t, node.PowerOff())
	g.waitLost(t, node)
	assert.NoError(t, node.Taint(t.Context(), cluster.OutOfService))
	g.waitElsewhere(t, before)
	next := g.pod(t)
	assert.NoError(t, errors.Join(node.Untaint(t.Context(), cluster.OutOfService.Key), node.PowerOn()))
	waitForNode(t, node, true)
	g.checkUndisturbed(t, next)
}

// testAssertedOff powers a node off and asserts that one pod is off: no other object of the node
// changes, and the guest starts on another node.
func testAssertedOff(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	assert.NoError(t, node.PowerOff())
	g.waitLost(t, node)
	framework.RunKubectl(t, shared.Kubeconfig, "-n", g.namespace, "annotate", "vm", g.name, "--overwrite", api.AnnotationMachineIsOff+"="+string(before.UID))
	g.waitElsewhere(t, before)
	next := g.pod(t)
	assert.NoError(t, node.PowerOn())
	waitForNode(t, node, true)
	g.checkUndisturbed(t, next)
}

// testStreams uses kubectl vm, which shows the console and the log of the pod, while the guest shuts
// down.
func testStreams(t *testing.T, g *guest) {
	env := []string{"KUBECONFIG=" + shared.Kubeconfig}
	log, _ := framework.MustRunCommand(t, framework.CommandTimeout, env, g.kubectlVM, "-n", podNamespace, "logs", g.name)
	want := fmt.Sprintf("drover linux guest %d is up", g.boots)
	assert.True(t, strings.Contains(log, want), "the log is %q, want %q", log, want)
	for verb, tc := range map[string]struct {
		args []string
		want string
	}{
		"exec":         {[]string{"--", "uname"}, "console " + g.name},
		"ip":           {nil, "--namespace " + podNamespace + " console " + g.name},
		"port-forward": {[]string{":81"}, "port 81"},
	} {
		args := append([]string{"-n", podNamespace, verb, g.name}, tc.args...)
		_, stderr, err := framework.RunCommand(t, framework.CommandTimeout, env, g.kubectlVM, args...)
		assert.True(t, err != nil && strings.Contains(stderr, tc.want), "kubectl vm %v: %v, %q, want %q", args, err, stderr, tc.want)
	}
	checkForwarded(t, g)
	console := startConsole(t, g)
	console.typeLine(t, "typed")
	g.stop(t)
	console.waitFor(t, "drover linux guest powers off")
	console.wait(t)
	_, stderr, err := framework.RunCommand(t, framework.CommandTimeout, env, g.kubectlVM, "-n", podNamespace, "console", g.name)
	assert.True(t, err != nil && strings.Contains(stderr, "is stopped"), "the console of a stopped VM: %v, %q", err, stderr)
}

// checkForwarded sends a request to the guest's web server through kubectl vm, and closes its side of the
// connection after the request.
func checkForwarded(t *testing.T, g *guest) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), g.kubectlVM, "-n", podNamespace, "port-forward", "--stdio", g.name, "80")
	cmd.Env, cmd.Stdin = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig), strings.NewReader("GET / HTTP/1.0\r\n\r\n")
	answer, err := cmd.CombinedOutput()
	assert.True(t, err == nil && strings.HasPrefix(string(answer), "HTTP/1.0 200 OK\r\n"), "kubectl vm port-forward: %v, %q", err, answer)
}

// console is the output of a machine, as kubectl logs -f shows it.
type console struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(p)
}

func (c *console) waitFor(t *testing.T, text string) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("the console shows %q", text), func(testing.TB) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if strings.Contains(c.text.String(), text) {
			return nil
		}
		return fmt.Errorf("it shows %s", c.text.String())
	})
}

// session is a session of kubectl vm console.
type session struct {
	console

	cmd   *exec.Cmd
	stdin io.Writer
}

func startConsole(t *testing.T, g *guest) *session {
	t.Helper()
	s := &session{cmd: exec.CommandContext(t.Context(), g.kubectlVM, "-n", podNamespace, "console", g.name)}
	s.cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig)
	s.cmd.Stdout, s.cmd.Stderr = &s.console, &s.console
	stdin, err := s.cmd.StdinPipe()
	if err == nil {
		s.stdin = stdin
		err = s.cmd.Start()
	}
	assert.NoError(t, err)
	return s
}

// typeLine types a line, and waits until the guest's terminal echoes it.
func (s *session) typeLine(t *testing.T, text string) {
	t.Helper()
	assert.NoError(t, assert.ErrorOf(io.WriteString(s.stdin, text+"\r")))
	s.waitFor(t, text)
}

// wait waits until the console has ended with the machine.
func (s *session) wait(t *testing.T) {
	t.Helper()
	assert.ErrorIs(t, "kubectl vm console", s.cmd.Wait(), nil)
}
