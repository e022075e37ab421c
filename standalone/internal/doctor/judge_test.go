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
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/standalone/internal/engines"
	"cloudnative.tw/drover/standalone/internal/pki"
	"cloudnative.tw/drover/standalone/internal/runstate"
)

// judged is what a check finds from some facts, and what it has to say.
type judged struct {
	found []findings.Finding
	level findings.Level // the worst; "" for no finding
	says  []string       // in the observation, the meaning, the fix or the command
}

func wantJudged(t *testing.T, cases map[string]judged) {
	t.Helper()
	for name, c := range cases {
		if (len(c.found) == 0) != (c.level == "") || len(c.found) > 0 && findings.Worst(c.found) != c.level {
			t.Errorf("%s: got %+v, want %q", name, c.found, c.level)
		}
		text := fmt.Sprintf("%+v", c.found)
		for _, want := range c.says {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is missing in %s", name, want, text)
			}
		}
		for _, f := range c.found {
			if f.Level != findings.LevelOK && f.Meaning == "" && !strings.Contains(name, "as asked") {
				t.Errorf("%s: %q says not what it means", name, f.Observed)
			}
			if f.Level == findings.LevelError && f.Fix == "" && f.Command == "" {
				t.Errorf("%s: %q says not how to fix it", name, f.Observed)
			}
			if strings.Contains(f.Observed+f.Meaning+f.Fix+f.Command, "%!") {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}

var (
	root  = User{Name: "root", By: "runs this command"}
	plain = User{ID: 998, GroupID: 998, Name: "drover", By: "owns /data"}
	now   = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
)

const (
	ok       = findings.LevelOK
	note     = findings.LevelNote
	warning  = findings.LevelWarning
	mistaken = findings.LevelError
)

func TestJudgeHost(t *testing.T) {
	t.Parallel()
	denied := &fs.PathError{Op: "open", Path: "/dev/kvm", Err: syscall.EACCES}
	missing := &fs.PathError{Op: "open", Path: "/dev/kvm", Err: syscall.ENOENT}
	wantJudged(t, map[string]judged{
		"clock: right":                      {judgeClock(clockFacts{now: now, installed: now.Add(-time.Hour), synced: true}), ok, []string{"synchronised"}},
		"clock: not synchronised":           {judgeClock(clockFacts{now: now, installed: now.Add(-time.Hour)}), warning, []string{"timedatectl set-ntp true"}},
		"clock: before the program":         {judgeClock(clockFacts{now: now, installed: now.Add(48 * time.Hour), synced: true}), mistaken, []string{"2026-11-24"}},
		"clock: file of a host ahead":       {judgeClock(clockFacts{now: now, installed: now.Add(time.Hour), synced: true}), ok, nil},
		"clock: not to be asked, as asked":  {judgeClock(clockFacts{now: now, err: syscall.EPERM}), note, []string{"not permitted"}},
		"kvm: a guest ran":                  {judgeKVM(kvmFacts{requested: "auto", user: root, probed: true}), ok, []string{"a guest ran"}},
		"kvm: opens":                        {judgeKVM(kvmFacts{requested: "auto", user: plain}), ok, []string{"as user drover"}},
		"kvm: no guest runs":                {judgeKVM(kvmFacts{requested: "auto", probed: true, probe: errors.New("a guest did not run within 3s")}), warning, []string{"within 3s", "nested"}},
		"kvm: module":                       {judgeKVM(kvmFacts{requested: "auto", device: missing, processor: "kvm_amd"}), warning, []string{"modprobe kvm_amd"}},
		"kvm: no virtualisation":            {judgeKVM(kvmFacts{requested: "auto", device: missing}), warning, []string{"VT-x", "nested"}},
		"kvm: required":                     {judgeKVM(kvmFacts{requested: "kvm", device: missing, processor: "kvm_intel"}), mistaken, []string{"do not start"}},
		"kvm: group":                        {judgeKVM(kvmFacts{requested: "auto", user: plain, device: denied, group: "kvm"}), warning, []string{"usermod --append --groups kvm drover"}},
		"kvm: no group":                     {judgeKVM(kvmFacts{requested: "auto", user: root, device: denied}), warning, []string{"chgrp kvm /dev/kvm && sudo chmod 660 /dev/kvm"}},
		"kvm: a group that may not":         {judgeKVM(kvmFacts{requested: "auto", user: root, device: denied, group: "kvm"}), warning, []string{"sudo chmod 660 /dev/kvm"}},
		"kvm: another user's, as asked":     {judgeKVM(kvmFacts{requested: "auto", user: plain, device: errOtherUser}), note, nil},
		"kvm: tcg as asked":                 {judgeKVM(kvmFacts{requested: "tcg", device: missing}), note, []string{"--qemu-accel=tcg"}},
		"cgroup: divided":                   {judgeCgroup(cgroupFacts{folder: cgroup.Folder{Path: "/sys/fs/cgroup/x", Unified: true}, runs: true}), ok, []string{"version 2", "of Drover", "/sys/fs/cgroup/x"}},
		"cgroup: not writable":              {judgeCgroup(cgroupFacts{err: denied}), note, []string{"version 1", "of this shell", "Delegate=cpu"}},
		"cgroup: another user's, as asked":  {judgeCgroup(cgroupFacts{err: errOtherUser}), note, nil},
		"confinement: whole":                {judgeConfinement(confinementFacts{abi: 9, filters: true}), ok, []string{"Landlock version 9"}},
		"confinement: in part":              {judgeConfinement(confinementFacts{abi: 1, filters: true}), note, []string{"truncating files", "TCP ports"}},
		"confinement: none":                 {judgeConfinement(confinementFacts{filters: true, noQEMU: true}), warning, []string{"5.13"}},
		"confinement: does not run":         {judgeConfinement(confinementFacts{filters: true, landlock: errors.New("it is no ELF program")}), warning, []string{"no ELF program"}},
		"confinement: no filter":            {judgeConfinement(confinementFacts{abi: 9}), warning, []string{"not filtered"}},
		"confinement: exposed":              {judgeConfinement(confinementFacts{abi: 9, filters: true, exposures: []string{"other users can look into /m: chmod 700 /m"}}), warning, []string{"chmod 700 /m"}},
		"machine-user: there":               {judgeMachineUser(machineUserFacts{user: root, name: "drover-qemu", ids: "1-9"}), ok, []string{"drover-qemu", "of its own"}},
		"machine-user: one for all":         {judgeMachineUser(machineUserFacts{user: root, name: "drover-qemu"}), ok, []string{"all machines"}},
		"machine-user: missing":             {judgeMachineUser(machineUserFacts{user: root, name: "drover-qemu", err: errors.New("no user")}), warning, []string{"useradd", " drover-qemu"}},
		"machine-user: Drover's":            {judgeMachineUser(machineUserFacts{user: plain}), note, []string{"drover"}},
		"open-files: many":                  {judgeOpenFiles(openFilesFacts{limit: 1 << 20, runs: true}), ok, []string{"Drover may open 1048576"}},
		"open-files: some":                  {judgeOpenFiles(openFilesFacts{limit: 4096}), warning, []string{"this shell may open 4096", "LimitNOFILE="}},
		"open-files: few":                   {judgeOpenFiles(openFilesFacts{limit: 256}), mistaken, []string{"1024 are needed"}},
		"open-files: unknown, as asked":     {judgeOpenFiles(openFilesFacts{err: denied}), note, nil},
		"inotify: enough":                   {judgeInotify(inotifyFacts{user: plain, instances: 128, watches: 65536}), ok, []string{"128 instances"}},
		"inotify: few":                      {judgeInotify(inotifyFacts{user: plain, instances: 8, watches: 65536}), warning, []string{"max_user_instances=512"}},
		"inotify: few watches":              {judgeInotify(inotifyFacts{user: plain, instances: 128, watches: 100}), warning, []string{"max_user_watches=65536"}},
		"inotify: none left":                {judgeInotify(inotifyFacts{user: plain, instances: 128, watches: 65536, err: syscall.EMFILE}), mistaken, []string{"user drover", "all 128"}},
		"inotify: fails":                    {judgeInotify(inotifyFacts{user: plain, err: syscall.ENOSYS}), warning, []string{"not implemented"}},
		"inotify: another user's":           {judgeInotify(inotifyFacts{user: plain, instances: 128, watches: 65536, err: errOtherUser}), ok, nil},
		"inotify: not to be read, as asked": {judgeInotify(inotifyFacts{user: plain, instances: -1, watches: -1}), ok, nil},
	})
}

func TestJudgeEngines(t *testing.T) {
	t.Parallel()
	old := errors.New("qemu: it is version 5.2, and 6.2 or newer is needed")
	used := func(e engines.Engine, err error, servers ...driver.Server) usedFacts {
		return usedFacts{engines: []engines.Surveyed{{Engine: e, Err: err, Survey: driver.Survey{Servers: servers}}}}
	}
	docker, machines := engines.Engine{Driver: "docker", ID: "3f6c8a52-8e1b-4f9a-a2c5-2f0b8a1c9d10"}, engines.Engine{Driver: "qemu", Dir: "/m", ID: "x"}
	wantJudged(t, map[string]judged{
		"qemu: there":                  {judgeQEMU(qemuFacts{name: "/usr/bin/qemu-system-x86_64", version: "8.2.2"}), ok, []string{"8.2.2", "6.2"}},
		"qemu: missing":                {judgeQEMU(qemuFacts{missing: errors.New("it is not installed"), install: "sudo apt-get install qemu-system-x86"}), note, []string{"apt-get"}},
		"qemu: missing and wanted":     {judgeQEMU(qemuFacts{wanted: true, missing: errors.New("it is not installed")}), mistaken, []string{"cannot run servers"}},
		"qemu: old":                    {judgeQEMU(qemuFacts{version: "5.2", err: old}), note, []string{"6.2 or newer"}},
		"qemu: old and wanted":         {judgeQEMU(qemuFacts{wanted: true, version: "5.2", err: old}), mistaken, []string{"--qemu-binary"}},
		"docker: there":                {judgeDocker(dockerFacts{address: "unix:///s", versions: engine.Versions{Engine: "28.2.2", API: "1.50"}}), ok, []string{"28.2.2", "1.50", "at /s"}},
		"docker: not the caller's":     {judgeDocker(dockerFacts{user: plain, isDenied: true, access: errOtherUser, err: errors.New("denied")}), note, []string{"you may not", "drover"}},
		"docker: away":                 {judgeDocker(dockerFacts{err: errors.New("out of reach")}), note, []string{"DOCKER_HOST"}},
		"docker: away and wanted":      {judgeDocker(dockerFacts{wanted: true, err: errors.New("out of reach")}), mistaken, []string{"go on running"}},
		"docker: not Drover's":         {judgeDocker(dockerFacts{user: plain, access: syscall.EACCES}), note, []string{"drover may not use it", "--groups docker drover"}},
		"docker: denied and wanted":    {judgeDocker(dockerFacts{wanted: true, user: plain, access: syscall.EACCES, err: errors.New("denied")}), mistaken, []string{"--groups docker drover"}},
		"used: nothing yet":            {judgeUsed(usedFacts{never: true}), "", nil},
		"used: answers":                {judgeUsed(used(docker, nil)), ok, []string{"docker/3f6c8a52-8e1b answers"}},
		"used: another":                {judgeUsed(used(docker, fmt.Errorf("%w: docker/OTHER", engines.ErrAnotherEngine))), mistaken, []string{"docker/OTHER", "DOCKER_HOST"}},
		"used: away":                   {judgeUsed(used(docker, driver.Errorf(driver.ErrUnavailable, "out of reach"))), mistaken, []string{"out of reach"}},
		"used: folder gone":            {judgeUsed(used(machines, fs.ErrNotExist)), warning, []string{"/m is gone", "mount"}},
		"used: not to be read":         {judgeUsed(used(machines, fs.ErrPermission)), note, nil},
		"used: a broken server":        {judgeUsed(used(machines, nil, driver.Server{UID: "u1", Err: errors.New("repair it")}, driver.Server{UID: "u2"})), warning, []string{"1 of its servers", "u1: repair it"}},
		"used: damaged record":         {judgeUsed(usedFacts{err: errors.New("engines.json is damaged")}), mistaken, []string{"engines.json", "backup"}},
		"used: record not to be read":  {judgeUsed(usedFacts{err: fs.ErrPermission}), note, nil},
		"used: record of nothing used": {judgeUsed(usedFacts{}), "", nil},
	})
}

func TestJudgeInstallation(t *testing.T) {
	t.Parallel()
	denied := &fs.PathError{Op: "write to", Path: "/data", Err: syscall.EACCES}
	at := func(f dataDirFacts) dataDirFacts {
		f.path, f.user, f.again = "/data", plain, "sudo drover doctor"
		return f
	}
	wantJudged(t, map[string]judged{
		"user: the same":               {judgeUser(userFacts{user: plain, isCaller: true}), ok, []string{"drover owns /data"}},
		"user: root may all":           {judgeUser(userFacts{user: plain, isRoot: true}), ok, nil},
		"user: another":                {judgeUser(userFacts{user: plain, again: "sudo drover doctor"}), note, []string{"sudo drover doctor"}},
		"data-dir: private":            {judgeDataDir(at(dataDirFacts{mode: 0o700})), ok, []string{"/data, private"}},
		"data-dir: open":               {judgeDataDir(at(dataDirFacts{mode: 0o755})), warning, []string{"0755", "chmod 700 /data"}},
		"data-dir: none yet":           {judgeDataDir(at(dataDirFacts{missing: true})), note, []string{"no /data yet"}},
		"data-dir: not to be made":     {judgeDataDir(at(dataDirFacts{missing: true, access: denied})), mistaken, []string{"cannot make it", "--data-dir"}},
		"data-dir: another's":          {judgeDataDir(at(dataDirFacts{mode: 0o700, access: errOtherUser})), ok, nil},
		"data-dir: foreign":            {judgeDataDir(at(dataDirFacts{foreign: errors.New("/data is not empty and is no Drover data dir")})), mistaken, []string{"no Drover data dir"}},
		"data-dir: not to be read":     {judgeDataDir(at(dataDirFacts{foreign: fs.ErrPermission})), note, []string{"sudo drover doctor"}},
		"data-dir: read-only":          {judgeDataDir(at(dataDirFacts{mode: 0o700, access: &fs.PathError{Err: syscall.EROFS}})), mistaken, []string{"dmesg"}},
		"data-dir: not writable":       {judgeDataDir(at(dataDirFacts{mode: 0o700, access: denied})), mistaken, []string{"chown drover /data"}},
		"files: none":                  {judgeFiles(filesFacts{skipped: true}), "", nil},
		"files: all well":              {judgeFiles(filesFacts{owner: plain, count: 7}), ok, []string{"all 7 files"}},
		"files: many":                  {judgeFiles(filesFacts{owner: plain, count: 7, cut: true}), ok, []string{"first 7 files"}},
		"files: root's":                {judgeFiles(filesFacts{path: "/my data", owner: plain, foreign: []string{"/dev/null"}}), warning, []string{"1 file is not user drover's", "--from root drover '/my data'"}},
		"files: secrets":               {judgeFiles(filesFacts{owner: plain, exposed: []string{"/data/kubeconfig", "b", "c", "d"}}), warning, []string{"4 files have secrets", "and 1 more", "chmod 600 /data/kubeconfig b c d"}},
		"files: not to be read":        {judgeFiles(filesFacts{owner: plain, err: fs.ErrPermission}), note, nil},
		"files: damaged disk":          {judgeFiles(filesFacts{owner: plain, err: syscall.EIO}), mistaken, []string{"dmesg"}},
		"disk: room":                   {judgeDisks([]diskFacts{{path: "/data", uses: []string{"data dir", "machines"}, free: 50 << 30, total: 100 << 30}}), ok, []string{"50 GiB free of 100 GiB at /data (data dir, machines)"}},
		"disk: little":                 {judgeDisks([]diskFacts{{free: 2 << 30, total: 100 << 30, prune: "drover image prune"}}), warning, []string{"2048 MiB", "drover image prune"}},
		"disk: small and empty":        {judgeDisks([]diskFacts{{free: 900 << 20, total: 1 << 30}}), ok, nil},
		"disk: full":                   {judgeDisks([]diskFacts{{free: 100 << 20, total: 100 << 30}}), mistaken, []string{"200 MiB"}},
		"disk: promised":               {judgeDisks([]diskFacts{{free: 50 << 30, total: 100 << 30, promised: 60 << 30}}), warning, []string{"grow by 60 GiB"}},
		"disk: no inodes":              {judgeDisks([]diskFacts{{free: 50 << 30, total: 100 << 30, ofNodes: 1000, inodes: 3}}), warning, []string{"3 more files"}},
		"disk: counts no inodes":       {judgeDisks([]diskFacts{{free: 50 << 30, total: 100 << 30}}), ok, nil},
		"disk: read-only":              {judgeDisks([]diskFacts{{free: 50 << 30, total: 100 << 30, readOnly: true}}), mistaken, []string{"read-only"}},
		"disk: unknown":                {judgeDisks([]diskFacts{{path: "/data", err: syscall.EIO}}), warning, nil},
		"sockets: short":               {judgeSockets(socketFacts{}), ok, []string{"short enough"}},
		"sockets: long":                {judgeSockets(socketFacts{err: errors.New("its path has 90 bytes and may have 50")}), mistaken, []string{"may have 50", "--data-dir"}},
		"certificates: none":           {judgeCertificates(certificateFacts{}), "", nil},
		"kubeconfig: none yet":         {judgeKubeconfig(kubeconfigFacts{exists: true, err: fs.ErrNotExist}), "", nil},
		"kubeconfig: not to be read":   {judgeKubeconfig(kubeconfigFacts{exists: true, err: fs.ErrPermission, asOwner: "sudo drover kubectl"}), note, []string{"sudo drover kubectl"}},
		"kubeconfig: damaged":          {judgeKubeconfig(kubeconfigFacts{exists: true, err: errors.New("no PEM")}), warning, []string{"no PEM"}},
		"kubeconfig: of another port":  {judgeKubeconfig(kubeconfigFacts{exists: true, server: "https://a:1", want: "https://a:2", sameCA: true}), warning, []string{"https://a:1", "https://a:2"}},
		"kubeconfig: of another CA":    {judgeKubeconfig(kubeconfigFacts{exists: true}), warning, []string{"authority"}},
		"kubeconfig: has ended":        {judgeKubeconfig(kubeconfigFacts{exists: true, sameCA: true, now: now, expires: now.Add(-time.Hour)}), warning, []string{"2026-11-22"}},
		"kubeconfig: fits":             {judgeKubeconfig(kubeconfigFacts{exists: true, server: "https://a:1", want: "https://a:1", sameCA: true, now: now, expires: now.Add(time.Hour)}), ok, []string{"https://a:1"}},
		"kubeconfig: of a stopped one": {judgeKubeconfig(kubeconfigFacts{exists: true, server: "https://a:1", sameCA: true, now: now, expires: now.Add(time.Hour)}), ok, nil},
	})
}

func TestJudgeCertificates(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	judge := func(runs bool, c pki.Certificate) []findings.Finding {
		c.File = "serving.pem"
		authority := pki.Certificate{File: "ca.pem", NotAfter: now.Add(3650 * day), RenewAt: now.Add(3000 * day)}
		return judgeCertificates(certificateFacts{certificates: []pki.Certificate{authority, c}, runs: runs, now: now, exists: true})
	}
	valid := pki.Certificate{NotAfter: now.Add(300 * day), RenewAt: now.Add(200 * day)}
	due := pki.Certificate{NotAfter: now.Add(50 * day), RenewAt: now.Add(-2 * day)}
	ended := pki.Certificate{NotAfter: now.Add(-day), RenewAt: now.Add(-100 * day)}
	wantJudged(t, map[string]judged{
		"valid":                {judge(true, valid), ok, []string{"until 2027-09-18"}},
		"due while it runs":    {judge(true, due), warning, []string{"serving.pem", "2026-11-20"}},
		"due this minute":      {judge(true, pki.Certificate{NotAfter: now.Add(50 * day), RenewAt: now.Add(-time.Minute)}), ok, nil},
		"due while it is off":  {judge(false, due), note, []string{"next start renews"}},
		"ended":                {judge(true, ended), mistaken, []string{"has ended on 2026-11-21"}},
		"ended while it's off": {judge(false, ended), note, []string{"next start renews"}},
		"not yet valid":        {judge(true, pki.Certificate{NotBefore: now.Add(time.Hour), NotAfter: valid.NotAfter, RenewAt: valid.RenewAt}), mistaken, []string{"clock"}},
		"foreign":              {judge(true, pki.Certificate{NotAfter: valid.NotAfter, RenewAt: valid.RenewAt, IsForeign: true}), warning, []string{"another authority"}},
		"damaged":              {judge(true, pki.Certificate{Err: errors.New("damaged")}), warning, []string{"makes it again"}},
		"not to be read":       {judge(true, pki.Certificate{Err: fs.ErrPermission}), note, nil},
		"no authority": {judgeCertificates(certificateFacts{
			certificates: []pki.Certificate{{File: "ca.pem", Err: fs.ErrNotExist}}, exists: true, now: now,
		}), warning, []string{"new authority", "backup"}},
	})
}

func TestJudgeProcess(t *testing.T) {
	t.Parallel()
	state := func(change func(*runstate.State)) *runstate.State {
		s := &runstate.State{
			Version: "v1", PID: 42, StartedAt: now.Add(-time.Hour),
			Components: []runstate.Component{{Name: "etcd", State: runstate.StateReady}, {Name: "kube-apiserver", State: runstate.StateStarting}},
		}
		if change != nil {
			change(s)
		}
		return s
	}
	judge := func(f processFacts) []findings.Finding {
		f.version, f.now, f.exists = "v1", now, true
		return judgeProcess(f)
	}
	young := state(func(s *runstate.State) { s.StartedAt = now.Add(-time.Second) })
	wantJudged(t, map[string]judged{
		"no data dir":                   {judgeProcess(processFacts{}), "", nil},
		"ready":                         {judge(processFacts{pid: 42, ready: true, state: state(nil)}), ok, []string{"Drover v1 runs as process 42, for 60m"}},
		"of an older version, ready":    {judge(processFacts{pid: 42, ready: true}), ok, nil},
		"of an older version, as asked": {judge(processFacts{pid: 42}), note, nil},
		"starts, as asked":              {judge(processFacts{pid: 42, state: young}), note, []string{"kube-apiserver is starting"}},
		"hangs":                         {judge(processFacts{pid: 42, state: state(nil)}), mistaken, []string{"kube-apiserver is starting"}},
		"another version, as asked":     {judge(processFacts{pid: 42, ready: true, state: state(func(s *runstate.State) { s.Version = "v0" })}), note, []string{"Drover v0", "is v1", "restart"}},
		"stopped":                       {judge(processFacts{state: state(func(s *runstate.State) { s.EndedAt = now.Add(-time.Minute) })}), note, []string{"stopped 60s ago"}},
		"killed":                        {judge(processFacts{state: state(nil)}), note, []string{"process 42, was killed"}},
		"failed":                        {judge(processFacts{state: state(func(s *runstate.State) { s.Failure = "etcd failed" })}), warning, []string{"etcd failed"}},
		"never ran here, as asked":      {judge(processFacts{}), note, nil},
		"a damaged record":              {judge(processFacts{stateErr: errors.New("is damaged")}), note, []string{"is damaged"}},
		"not to be read, as asked":      {judge(processFacts{stateErr: fs.ErrPermission}), note, nil},
		"a damaged lock":                {judge(processFacts{err: errors.New(`holds "x"`)}), warning, []string{"unknown"}},
		"a lock not to be read":         {judge(processFacts{err: fs.ErrPermission}), note, nil},
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
		"taken":                 {judge(portFacts{taken: true, by: 7, name: "nginx"}), mistaken, []string{"nginx (process 7)", "drover up --port 0"}},
		"taken by whom":         {judge(portFacts{taken: true}), mistaken, []string{"another program"}},
		"taken at first":        {judge(portFacts{taken: true, first: true}), note, []string{"another port"}},
		"metrics taken":         {judge(portFacts{flag: "--metrics-bind-address", taken: true}), mistaken, []string{"--metrics-bind-address"}},
		"Drover's":              {judge(portFacts{runs: true, ready: true, taken: true, by: 42}), ok, []string{"is Drover's"}},
		"Drover's, perhaps":     {judge(portFacts{runs: true, ready: true, taken: true}), ok, nil},
		"another's":             {judge(portFacts{runs: true, ready: true, taken: true, by: 7, name: "nginx"}), mistaken, []string{"nginx"}},
		"none listens":          {judge(portFacts{runs: true, ready: true}), mistaken, []string{"no program listens"}},
		"not yet, as asked":     {judge(portFacts{runs: true}), note, []string{"yet"}},
		"cannot be read at all": {judgePorts(portsFacts{err: fs.ErrPermission}), note, nil},
	})
}

func TestJudgeAPI(t *testing.T) {
	t.Parallel()
	lease := func(holder string, age time.Duration) *coordinationv1.Lease {
		renewed := metav1.NewMicroTime(now.Add(-age))
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed, LeaseDurationSeconds: new(int32(60))}}
	}
	led := func(l *coordinationv1.Lease, claim string, err error) []findings.Finding {
		return judgeLeader(leaderFacts{asked: true, lease: l, claim: claim, err: err, now: now})
	}
	wantJudged(t, map[string]judged{
		"api: not asked":     {judgeAPI(apiFacts{}), "", nil},
		"api: ready":         {judgeAPI(apiFacts{asked: true, url: "https://a:1", version: "v1.36.3"}), ok, []string{"v1.36.3", "https://a:1"}},
		"api: no answer":     {judgeAPI(apiFacts{asked: true, err: errors.New("connection refused")}), mistaken, []string{"connection refused"}},
		"api: not ready":     {judgeAPI(apiFacts{asked: true, unready: "etcd"}), mistaken, []string{"not ready: etcd", "disk"}},
		"api: ahead":         {judgeAPI(apiFacts{asked: true, skew: time.Minute}), warning, []string{"off by 1m0s"}},
		"api: behind":        {judgeAPI(apiFacts{asked: true, skew: -time.Minute}), warning, []string{"off by -1m0s"}},
		"api: rounded":       {judgeAPI(apiFacts{asked: true, skew: -time.Second}), ok, nil},
		"crd: not asked":     {judgeCRD(crdFacts{}), "", nil},
		"crd: fits":          {judgeCRD(crdFacts{asked: true, served: true}), ok, nil},
		"crd: older":         {judgeCRD(crdFacts{asked: true, served: true, missing: "status.binding"}), warning, []string{"status.binding"}},
		"crd: none":          {judgeCRD(crdFacts{asked: true}), mistaken, []string{"no VirtualMachines"}},
		"crd: unknown":       {judgeCRD(crdFacts{asked: true, err: errors.New("timeout")}), warning, nil},
		"leader: not asked":  {judgeLeader(leaderFacts{}), "", nil},
		"leader: there":      {led(lease("drover_up_1", time.Second), "default/drover-controller", nil), ok, []string{"drover_up_1", "1s ago"}},
		"leader: of old":     {led(lease("drover_up_1", time.Second), "", nil), ok, nil},
		"leader: stale":      {led(lease("drover_up_1", time.Hour), "default/drover-controller", nil), mistaken, []string{"60m ago"}},
		"leader: none":       {led(nil, "", nil), warning, []string{"no controller leads"}},
		"leader: released":   {led(lease("", time.Second), "", nil), warning, []string{"no controller leads"}},
		"leader: another":    {led(lease("drover_up_1", time.Second), "drover-system/other", nil), mistaken, []string{"drover-system/other"}},
		"leader: unreadable": {led(nil, "", errors.New("timeout")), warning, nil},
	})
}
