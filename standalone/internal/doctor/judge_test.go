// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/inotify"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/standalone/internal/engines"
	"cloudnative.tw/drover/standalone/internal/storekeeper"
	"cloudnative.tw/drover/standalone/internal/storequota"
	"cloudnative.tw/drover/test/assert"
)

// judged has the finding of a check about some facts, and the texts that it must contain.
type judged struct {
	found []findings.Finding
	level findings.Level // the worst; "" for no finding
	says  []string       // in the observation, the meaning, the fix or the command
}

func wantJudged(t *testing.T, cases map[string]judged) {
	t.Helper()
	for name, c := range cases {
		assert.True(t, (len(c.found) == 0) == (c.level == "") && (len(c.found) == 0 || findings.Worst(c.found) == c.level),
			"%s: got %+v, want %q", name, c.found, c.level)
		text := fmt.Sprintf("%+v", c.found)
		for _, want := range c.says {
			assert.Contains(t, fmt.Sprintf("%s: %q is missing in", name, want), text, want)
		}
		for _, f := range c.found {
			assert.True(t, f.Level == findings.LevelOK || f.Meaning != "" || strings.Contains(name, "as asked"), "%s: %q says not what it means", name, f.Observed)
			assert.True(t, f.Level != findings.LevelError || f.Fix != "" || f.Command != "", "%s: %q says not how to fix it", name, f.Observed)
			assert.True(t, !strings.Contains(f.Observed+f.Meaning+f.Fix+f.Command, "%!"), "%s: %+v", name, f)
		}
	}
}

var (
	root     = User{Name: "root", By: "runs this command"}
	ofDomain = User{ID: 997, GroupID: 997, Name: `CORP\a b`, By: "owns /data"}
	plain    = User{ID: 998, GroupID: 998, Name: "drover", By: "owns /data"}
)

const (
	ok       = findings.LevelOK
	note     = findings.LevelNote
	warning  = findings.LevelWarning
	mistaken = findings.LevelError
)

func TestJudgeServed(t *testing.T) {
	t.Parallel()
	served := &apiextensionsv1.CustomResourceDefinition{}
	going, refused := served.DeepCopy(), served.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{}
	refused.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse, Message: "names conflict"}}
	dead := deadWebhook{webhook{
		kind: "ValidatingWebhookConfiguration", configuration: "policies", name: "check.example.com",
		rules: []admissionv1.RuleWithOperations{{Rule: admissionv1.Rule{APIGroups: []string{"*"}, Resources: []string{"*"}}}},
	}, syscall.ECONNREFUSED}
	lenient := dead
	lenient.policy = new(admissionv1.Ignore)
	wantJudged(t, map[string]judged{
		"stopped":            {judgeServed(servedFacts{stopped: true}), "", nil},
		"served":             {judgeServed(servedFacts{crd: served, webhooks: 2}), ok, []string{"webhooks that it calls for them: 2"}},
		"no answer":          {judgeServed(servedFacts{err: syscall.ECONNREFUSED}), warning, []string{"connection refused"}},
		"deleted":            {judgeServed(servedFacts{}), mistaken, []string{crdName, "start drover up again"}},
		"being deleted":      {judgeServed(servedFacts{crd: going}), mistaken, []string{"is being deleted", "start drover up again"}},
		"not established":    {judgeServed(servedFacts{crd: refused}), mistaken, []string{"names conflict"}},
		"dead webhook":       {judgeServed(servedFacts{crd: served, dead: []deadWebhook{dead}}), mistaken, []string{"check.example.com", "virtualmachines.cloudnative.tw, leases.coordination.k8s.io", "drover kubectl delete validatingwebhookconfiguration policies"}},
		"dead, and ignored":  {judgeServed(servedFacts{crd: served, dead: []deadWebhook{lenient}}), warning, []string{"timeoutSeconds"}},
		"both, one ignored ": {judgeServed(servedFacts{dead: []deadWebhook{lenient}}), mistaken, []string{crdName, "check.example.com"}},
	})
}

// TestConcernedResources checks which webhooks Drover depends on.
func TestConcernedResources(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		groups, resources []string
		want              string
	}{
		"all":                 {[]string{"*"}, []string{"*/*"}, "virtualmachines.cloudnative.tw virtualmachines/status.cloudnative.tw leases.coordination.k8s.io events.events.k8s.io events"},
		"no subresources":     {[]string{"*"}, []string{"*"}, "virtualmachines.cloudnative.tw leases.coordination.k8s.io events.events.k8s.io events"},
		"a subresource":       {[]string{"cloudnative.tw"}, []string{"*/status"}, "virtualmachines/status.cloudnative.tw"},
		"with subresources":   {[]string{"cloudnative.tw"}, []string{"virtualmachines/*"}, "virtualmachines.cloudnative.tw virtualmachines/status.cloudnative.tw"},
		"others":              {[]string{"", "apps"}, []string{"pods", "configmaps", "secrets/status"}, ""},
		"the core group":      {[]string{""}, []string{"events", "pods"}, "events"},
		"the name in another": {[]string{"example.com"}, []string{"virtualmachines"}, ""},
	} {
		w := webhook{rules: []admissionv1.RuleWithOperations{{Rule: admissionv1.Rule{APIGroups: c.groups, Resources: c.resources}}}}
		assert.Equal(t, name, strings.Join(w.concernedResources(), " "), c.want)
	}
}

func TestJudgeHost(t *testing.T) {
	t.Parallel()
	denied := &fs.PathError{Op: "open", Path: "/dev/kvm", Err: syscall.EACCES}
	missing := &fs.PathError{Op: "open", Path: "/dev/kvm", Err: syscall.ENOENT}
	wantJudged(t, map[string]judged{
		"kvm: a guest ran":                  {judgeKVM(kvmFacts{requested: "auto", user: root, probed: true}), ok, []string{"a guest ran"}},
		"kvm: opens":                        {judgeKVM(kvmFacts{requested: "auto", user: plain}), ok, []string{"as user drover"}},
		"kvm: no guest runs":                {judgeKVM(kvmFacts{requested: "auto", probed: true, probe: errors.New("the probe guest did not finish under KVM within 3s")}), warning, []string{"within 3s", "nested"}},
		"kvm: module":                       {judgeKVM(kvmFacts{requested: "auto", device: missing, module: "kvm_amd"}), warning, []string{"modprobe kvm_amd"}},
		"kvm: no virtualisation":            {judgeKVM(kvmFacts{requested: "auto", device: missing}), warning, []string{"VT-x", "nested"}},
		"kvm: required":                     {judgeKVM(kvmFacts{requested: "kvm", device: missing, module: "kvm_intel"}), mistaken, []string{"do not start"}},
		"kvm: group":                        {judgeKVM(kvmFacts{requested: "auto", user: plain, device: denied, group: "kvm"}), warning, []string{"usermod --append --groups kvm drover"}},
		"kvm: group, a user of a domain":    {judgeKVM(kvmFacts{requested: "auto", user: ofDomain, device: denied, group: "kvm"}), warning, []string{`usermod --append --groups kvm 'CORP\a b'`}},
		"kvm: no group":                     {judgeKVM(kvmFacts{requested: "auto", user: root, device: denied}), warning, []string{"chgrp kvm /dev/kvm && sudo chmod 660 /dev/kvm"}},
		"kvm: a group that may not":         {judgeKVM(kvmFacts{requested: "auto", user: root, device: denied, group: "kvm"}), warning, []string{"sudo chmod 660 /dev/kvm"}},
		"kvm: another user's, as asked":     {judgeKVM(kvmFacts{requested: "auto", user: plain, device: errOtherUser}), note, nil},
		"kvm: tcg as asked":                 {judgeKVM(kvmFacts{requested: "tcg", device: missing}), note, []string{"--qemu-accel=tcg"}},
		"cgroup: divided":                   {judgeCgroup(cgroupFacts{folder: cgroup.Folder{Path: "/sys/fs/cgroup/x", Unified: true}, isDrover: true}), ok, []string{"version 2", "of Drover", "/sys/fs/cgroup/x"}},
		"cgroup: not writable":              {judgeCgroup(cgroupFacts{err: denied}), note, []string{"version 1", "of this shell", "Delegate=cpu"}},
		"cgroup: another user's, as asked":  {judgeCgroup(cgroupFacts{err: errOtherUser}), note, nil},
		"inotify: enough":                   {judgeInotify(inotifyFacts{user: plain}), ok, []string{"user drover"}},
		"inotify: the user's limit":         {judgeInotify(inotifyFacts{user: plain, count: 2, err: &inotify.LimitError{Command: "sudo sysctl a=2", Line: "a=2"}}), mistaken, []string{"sudo sysctl a=2", "/etc/sysctl.d"}},
		"inotify: the process's limit":      {judgeInotify(inotifyFacts{user: plain, err: syscall.EMFILE}), mistaken, []string{"too many open files"}},
		"inotify: another user's, as asked": {judgeInotify(inotifyFacts{err: errOtherUser}), note, nil},
		"confinement: whole":                {judgeConfinement(confinementFacts{abi: 9, filters: true}), ok, []string{"Landlock version 9"}},
		"confinement: in part":              {judgeConfinement(confinementFacts{abi: 1, filters: true}), note, []string{"truncating files", "signals to other processes"}},
		"confinement: none":                 {judgeConfinement(confinementFacts{filters: true, noQEMU: true}), warning, []string{"5.13"}},
		"confinement: does not run":         {judgeConfinement(confinementFacts{filters: true, landlock: errors.New("it is not an ELF program")}), warning, []string{"not an ELF program"}},
		"confinement: no filter":            {judgeConfinement(confinementFacts{abi: 9}), warning, []string{"not filtered"}},
		"confinement: exposed":              {judgeConfinement(confinementFacts{abi: 9, filters: true, exposures: []string{"other users can look into /m: mode 0700 keeps them out"}}), warning, []string{"mode 0700"}},
		"machine-user: there":               {judgeMachineUser(machineUserFacts{user: root, name: "drover-qemu", ids: "1-9"}), ok, []string{"drover-qemu", "separate"}},
		"machine-user: one for all":         {judgeMachineUser(machineUserFacts{user: root, name: "drover-qemu"}), ok, []string{"all machines"}},
		"machine-user: missing":             {judgeMachineUser(machineUserFacts{user: root, name: "drover-qemu", err: errors.New("no user")}), warning, []string{"useradd", " drover-qemu"}},
		"machine-user: Drover's":            {judgeMachineUser(machineUserFacts{user: plain}), note, []string{"drover"}},
	})
}

func TestJudgeEngines(t *testing.T) {
	t.Parallel()
	old := errors.New("qemu is version 5.2, and 6.2 or newer is needed")
	wantJudged(t, map[string]judged{
		"qemu: there":               {judgeQEMU(qemuFacts{name: "/usr/bin/qemu-system-x86_64", version: "8.2.2"}), ok, []string{"8.2.2", "6.2"}},
		"qemu: missing":             {judgeQEMU(qemuFacts{versionErr: errors.New("it is not installed"), install: "sudo apt-get install qemu-system-x86"}), note, []string{"apt-get"}},
		"qemu: missing and wanted":  {judgeQEMU(qemuFacts{need: needed, versionErr: errors.New("it is not installed")}), mistaken, []string{"cannot run servers"}},
		"qemu: old":                 {judgeQEMU(qemuFacts{version: "5.2", checkErr: old}), note, []string{"6.2 or newer"}},
		"qemu: old and wanted":      {judgeQEMU(qemuFacts{need: needed, version: "5.2", checkErr: old}), mistaken, []string{"--qemu-binary"}},
		"qemu: no engine at all":    {judgeQEMU(qemuFacts{need: lastCandidate, versionErr: errors.New("it is not installed")}), mistaken, []string{"drover up needs one of them to start", "--vm-driver"}},
		"docker: no engine at all":  {judgeDocker(dockerFacts{need: lastCandidate, err: errors.New("unreachable"), install: "sudo apt-get install docker.io"}), mistaken, []string{"drover up needs one of them to start", "apt-get"}},
		"docker: there":             {judgeDocker(dockerFacts{address: "unix:///s", versions: engine.Versions{Engine: "28.2.2", API: "1.50"}}), ok, []string{"28.2.2", "1.50", "at /s"}},
		"docker: not the caller's":  {judgeDocker(dockerFacts{user: plain, isDenied: true, accessErr: errOtherUser, err: errors.New("denied")}), note, []string{"you may not", "drover"}},
		"docker: away":              {judgeDocker(dockerFacts{err: errors.New("unreachable")}), note, []string{"DOCKER_HOST"}},
		"docker: away and wanted":   {judgeDocker(dockerFacts{need: needed, err: errors.New("unreachable")}), mistaken, []string{"go on running"}},
		"docker: not Drover's":      {judgeDocker(dockerFacts{user: plain, accessErr: syscall.EACCES}), note, []string{"drover may not use it", "--groups docker drover"}},
		"docker: denied and wanted": {judgeDocker(dockerFacts{need: needed, user: plain, accessErr: syscall.EACCES, err: errors.New("denied")}), mistaken, []string{"--groups docker drover"}},
	})
}

// TestNeeds checks for which engines that do not answer Drover cannot start, or not run its VMs.
func TestNeeds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		list         string
		known        []engines.Engine
		otherAnswers bool
		want         need
	}{
		"named":                  {list: "qemu,docker", want: needed},
		"another is named":       {list: "fake", want: unneeded},
		"has run here":           {list: "auto", known: []engines.Engine{{Driver: "docker"}}, want: needed},
		"any, and there is none": {list: "auto", want: lastCandidate},
		"any, and another runs":  {list: "auto", otherAnswers: true, want: unneeded},
	} {
		h := &Host{Known: c.known}
		h.VMDriver = c.list
		assert.Equal(t, name, h.needOf("docker", func() bool { return c.otherAnswers }), c.want)
	}
}

func TestJudgeInstallation(t *testing.T) {
	t.Parallel()
	denied := &fs.PathError{Op: "write to", Path: "/data", Err: syscall.EACCES}
	at := func(f dataDirFacts) dataDirFacts {
		f.path, f.user, f.again = "/data", plain, "sudo drover doctor"
		return f
	}
	wantJudged(t, map[string]judged{
		"data-dir: private":                 {judgeDataDir(at(dataDirFacts{mode: 0o700})), ok, []string{"/data, private"}},
		"data-dir: another's settings":      {judgeDataDir(at(dataDirFacts{mode: 0o700, ignored: errors.New("state.json is not read: another user owns it")})), warning, []string{"another user owns it", "do not use the settings"}},
		"data-dir: settings not to be read": {judgeDataDir(at(dataDirFacts{mode: 0o700, ignored: fs.ErrPermission})), note, []string{"sudo drover doctor"}},
		"data-dir: open":                    {judgeDataDir(at(dataDirFacts{mode: 0o755})), warning, []string{"0755", "chmod 700 /data"}},
		"data-dir: none yet":                {judgeDataDir(at(dataDirFacts{missing: true})), note, []string{"no /data yet"}},
		"data-dir: not to be made":          {judgeDataDir(at(dataDirFacts{missing: true, access: denied})), mistaken, []string{"cannot make it", "--data-dir"}},
		"data-dir: another's":               {judgeDataDir(at(dataDirFacts{mode: 0o700, access: errOtherUser})), ok, nil},
		"data-dir: foreign":                 {judgeDataDir(at(dataDirFacts{foreign: errors.New("/data is not empty and not a Drover data dir")})), mistaken, []string{"not a Drover data dir"}},
		"data-dir: not to be read":          {judgeDataDir(at(dataDirFacts{foreign: fs.ErrPermission})), note, []string{"sudo drover doctor"}},
		"data-dir: read-only":               {judgeDataDir(at(dataDirFacts{mode: 0o700, access: &fs.PathError{Err: syscall.EROFS}})), mistaken, []string{"dmesg"}},
		"data-dir: not writable":            {judgeDataDir(at(dataDirFacts{mode: 0o700, access: denied})), mistaken, []string{"chown drover /data"}},
		"files: none":                       {judgeFiles(filesFacts{skipped: true}), "", nil},
		"files: all well":                   {judgeFiles(filesFacts{owner: plain, count: 7}), ok, []string{"all 7 files"}},
		"files: many":                       {judgeFiles(filesFacts{owner: plain, count: 7, cut: true}), ok, []string{"first 7 files"}},
		"files: root's":                     {judgeFiles(filesFacts{path: "/my data", owner: plain, foreign: []string{"/dev/null"}}), warning, []string{"1 file is not user drover's", "--from root drover '/my data'"}},
		"files: root's, a user of a domain": {judgeFiles(filesFacts{path: "/my data", owner: ofDomain, foreign: []string{"/dev/null"}}), warning, []string{`--from root 'CORP\a b' '/my data'`}},
		"files: secrets":                    {judgeFiles(filesFacts{owner: plain, exposed: []string{"/data/kubeconfig", "b", "c", "d"}}), warning, []string{"4 files have secrets", "and 1 more", "chmod 600 /data/kubeconfig b c d"}},
		"files: not to be read":             {judgeFiles(filesFacts{owner: plain, err: fs.ErrPermission}), note, nil},
		"files: damaged disk":               {judgeFiles(filesFacts{owner: plain, err: syscall.EIO}), mistaken, []string{"dmesg"}},
		"disk: room":                        {judgeDisks([]diskFacts{{path: "/data", uses: []string{"data dir", "machines"}, free: 50 << 30, total: 100 << 30}}), ok, []string{"50 GiB free of 100 GiB at /data (data dir, machines)"}},
		"disk: little":                      {judgeDisks([]diskFacts{{free: 2 << 30, total: 100 << 30, prune: "drover image prune"}}), warning, []string{"2048 MiB", "drover image prune"}},
		"disk: small and empty":             {judgeDisks([]diskFacts{{free: 900 << 20, total: 1 << 30}}), ok, nil},
		"disk: full":                        {judgeDisks([]diskFacts{{free: 100 << 20, total: 100 << 30}}), mistaken, []string{"200 MiB"}},
		"disk: promised":                    {judgeDisks([]diskFacts{{free: 50 << 30, total: 100 << 30, promised: 60 << 30}}), warning, []string{"grow by 60 GiB"}},
		"disk: no inodes":                   {judgeDisks([]diskFacts{{free: 50 << 30, total: 100 << 30, totalInodes: 1000, freeInodes: 3}}), warning, []string{"3 more files"}},
		"disk: counts no inodes":            {judgeDisks([]diskFacts{{free: 50 << 30, total: 100 << 30}}), ok, nil},
		"disk: read-only":                   {judgeDisks([]diskFacts{{free: 50 << 30, total: 100 << 30, readOnly: true}}), mistaken, []string{"read-only"}},
		"disk: unknown":                     {judgeDisks([]diskFacts{{path: "/data", err: syscall.EIO}}), warning, nil},
	})
}

func TestJudgePorts(t *testing.T) {
	t.Parallel()
	judge := func(p portFacts) []findings.Finding {
		p.address, p.port, p.move = "127.0.0.1", 6443, "drover up --port 0"
		if p.flag == "" {
			p.flag = "--port"
		}
		if p.runs {
			p.pid = 42
		}
		return judgePorts(portsFacts{ports: []portFacts{p}})
	}
	wantJudged(t, map[string]judged{
		"free":                  {judge(portFacts{}), ok, []string{"port 6443 on 127.0.0.1 (--port) is free"}},
		"taken":                 {judge(portFacts{taken: true, owner: 7, ownerName: "nginx"}), mistaken, []string{"nginx (process 7)", "drover up --port 0"}},
		"in use by another":     {judge(portFacts{taken: true}), mistaken, []string{"another program"}},
		"taken at first":        {judge(portFacts{taken: true, isPreferred: true}), note, []string{"another port"}},
		"metrics taken":         {judge(portFacts{flag: "--metrics-bind-address", taken: true}), mistaken, []string{"--metrics-bind-address"}},
		"Drover's":              {judge(portFacts{runs: true, ready: true, taken: true, owner: 42}), ok, []string{"is Drover's"}},
		"Drover's, perhaps":     {judge(portFacts{runs: true, ready: true, taken: true}), ok, nil},
		"another's":             {judge(portFacts{runs: true, ready: true, taken: true, owner: 7, ownerName: "nginx"}), mistaken, []string{"nginx"}},
		"none listens":          {judge(portFacts{runs: true, ready: true}), mistaken, []string{"no program listens"}},
		"not yet, as asked":     {judge(portFacts{runs: true}), note, []string{"yet"}},
		"cannot be read at all": {judgePorts(portsFacts{err: fs.ErrPermission}), note, nil},
	})
}

func TestJudgeStore(t *testing.T) {
	t.Parallel()
	usage := func(objects int64, full bool) storeFacts {
		return storeFacts{kubectl: "drover kubectl", usage: &storekeeper.Usage{
			Objects: objects << 20, Quota: 100 << 20, File: 120 << 20, InUse: 90 << 20, FileLimit: 300 << 20, IsFull: full,
			Largest: []storequota.NamespaceUsage{{Name: "", Bytes: 60 << 20}, {Name: "blue", Bytes: 20 << 20}},
		}}
	}
	wantJudged(t, map[string]judged{
		"store: stopped": {judgeStore(storeFacts{skipped: true}), "", nil},
		"store: unknown": {judgeStore(storeFacts{err: fs.ErrPermission}), note, []string{"is unknown"}},
		"store: room":    {judgeStore(usage(50, false)), ok, []string{"objects use 50 MiB of the 100 MiB", "90 MiB is in use"}},
		"store: crowded": {judgeStore(usage(75, false)), warning, []string{"blue 20 MiB", "drover kubectl --namespace blue", "--store-quota"}},
		"store: full":    {judgeStore(usage(90, true)), mistaken, []string{"Deletions work", "--namespace blue"}},
	})
}
