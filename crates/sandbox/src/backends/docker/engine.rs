//! Connection to a container engine: Docker's, or Podman's by the same protocol.

use std::collections::HashMap;
use std::path::Path;
use std::pin::pin;

use aludel_jail::syscalls::SocketMemory;

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error as EngineError;
use bollard::models::{
    ContainerCreateBody, SystemInfoCgroupDriverEnum, SystemInfoCgroupVersionEnum, VolumeCreateRequest,
};
use bollard::query_parameters::{
    AttachContainerOptions, CreateContainerOptions, CreateImageOptions, InspectContainerOptions, ListContainersOptions,
    ListVolumesOptions, RemoveContainerOptions, RemoveVolumeOptions, StartContainerOptions, StatsOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker as Client};
use futures_util::StreamExt;

use crate::backends::stdio::{OutputChunk, Stdio};
use crate::{Error, Usage};

/// Prefix of the names of images that are built locally and never pulled.
const OWN_IMAGES: &str = "aludel/default:";
/// The longest wait for an answer, seconds. The slowest request is the removal of a container whose processes end slowly.
const ANSWER_TIMEOUT: u64 = 120;
/// Label of everything that an instance makes in an engine, with the instance's name.
const LABEL: &str = "aludel.instance";
/// Sockets at which engines listen.
const SOCKETS: [&str; 2] = ["/var/run/docker.sock", "/run/podman/podman.sock"];

/// A connection to an engine.
#[derive(Debug)]
pub(super) struct DockerEngine {
    client: Client,
    host: String,
    /// The label of everything that this instance makes.
    instance: String,
    /// True if the engine enforces limits of memory, processes and processor time.
    pub(super) enforces_resources: bool,
    /// True if it has control groups, by which containers are paused.
    pub(super) pauses: bool,
    /// The release of the host's kernel.
    pub(super) kernel: Option<String>,
    /// The fate of the memory of sockets.
    pub(super) sockets: SocketMemory,
    /// The engine's name and version.
    pub(super) version: String,
}

impl DockerEngine {
    /// Connects to the engine at a socket, or to the first that exists.
    pub(super) async fn connect(host: Option<&str>, instance: String) -> Result<Self, Error> {
        let host = host.map_or_else(default_host, str::to_owned);
        let path = host.strip_prefix("unix://").unwrap_or(&host);
        if path.contains("://") {
            return Err(Error::Setup(format!(
                "{host} is no Unix socket; sandbox.docker.host takes unix:///PATH alone"
            )));
        }
        reachable(path).await.map_err(|error| unreachable(path, &error))?;
        let failed = |error: EngineError| Error::Setup(format!("the container engine at {host}: {error}"));
        let client = Client::connect_with_unix(path, ANSWER_TIMEOUT, API_DEFAULT_VERSION).map_err(failed)?;
        let client = client.negotiate_version().await.map_err(failed)?;
        let info = client.info().await.map_err(failed)?;
        let enforces_resources = info.memory_limit == Some(true) && info.pids_limit == Some(true);
        // Rootless on control groups of version 1, or without systemd: Docker says `none`, and Podman nothing of the kind.
        let is_rootless = info.security_options.unwrap_or_default().iter().any(|option| option.contains("rootless"));
        let pauses =
            info.cgroup_driver != Some(SystemInfoCgroupDriverEnum::NONE) && (enforces_resources || !is_rootless);
        let kernel = info.kernel_version;
        let version = format!("{} at {host}", info.server_version.unwrap_or_default());
        let is_new = info.cgroup_version == Some(SystemInfoCgroupVersionEnum::_2);
        let sockets = if is_new { SocketMemory::Counted } else { SocketMemory::Uncounted };
        Ok(Self { client, host, instance, enforces_resources, pauses, kernel, sockets, version })
    }

    /// Returns true if an image exists, and an error if it does not and cannot be pulled either.
    pub(super) async fn has_image(&self, image: &str) -> Result<bool, Error> {
        match self.client.inspect_image(image).await {
            Ok(_) => Ok(true),
            // It is not published: a registry could only have an image of somebody else.
            Err(error) if is_missing(&error) && image.starts_with(OWN_IMAGES) => Err(Error::Setup(format!(
                "the image {image} is not there; build it with `docker build -t {image} templates/default`, or name another with \
                 sandbox.docker.image"
            ))),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(self.failed("look for the image", &error)),
        }
    }

    /// Ensures that an image exists, and pulls it otherwise.
    pub(super) async fn prepare_image(
        &self,
        image: &str,
        progress: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Error> {
        if self.has_image(image).await? {
            return Ok(());
        }
        progress(&format!("pulling {image}"));
        let options = CreateImageOptions { from_image: Some(image.to_owned()), ..CreateImageOptions::default() };
        let mut pull = pin!(self.client.create_image(Some(options), None, None));
        while let Some(step) = pull.next().await {
            let step = step.map_err(|error| {
                Error::Setup(format!(
                    "the image {image} is not there and cannot be pulled ({error}); name another with sandbox.docker.image"
                ))
            })?;
            if let Some(status) = step.status {
                progress(&format!("{} {status}", step.id.unwrap_or_default()));
            }
        }
        Ok(())
    }

    /// Makes a volume.
    pub(super) async fn make_volume(&self, name: &str, options: HashMap<String, String>) -> Result<(), Error> {
        let request = VolumeCreateRequest {
            name: Some(name.to_owned()),
            driver: Some("local".to_owned()),
            driver_opts: Some(options),
            labels: Some(self.labels()),
            ..VolumeCreateRequest::default()
        };
        let made = self.client.create_volume(request).await;
        made.map(drop).map_err(|error| self.failed("make the volume of a workspace", &error))
    }

    /// Makes and starts a container, and returns its streams and the engine's warnings.
    pub(super) async fn run(&self, name: &str, body: ContainerCreateBody) -> Result<(Stdio, Vec<String>), Error> {
        let body = ContainerCreateBody { labels: Some(self.labels()), ..body };
        let options = CreateContainerOptions { name: Some(name.to_owned()), ..CreateContainerOptions::default() };
        let made = self.client.create_container(Some(options), body).await;
        let warnings = made.map_err(|error| self.failed("make a container", &error))?.warnings;
        let options =
            AttachContainerOptions { stream: true, stdin: true, stdout: true, stderr: true, ..Default::default() };
        let attached = self.client.attach_container(name, Some(options)).await;
        let attached = attached.map_err(|error| self.failed("attach to a container", &error))?;
        let started = self.client.start_container(name, None::<StartContainerOptions>).await;
        started.map_err(|error| self.failed("start a container", &error))?;
        let AttachContainerResults { output, input } = attached;
        let output = output.filter_map(async |piece| match piece {
            Ok(LogOutput::StdOut { message }) => Some(Ok(OutputChunk::Out(message))),
            Ok(LogOutput::StdErr { message }) => Some(Ok(OutputChunk::Err(message))),
            Ok(_) => None,
            Err(error) => Some(Err(error.to_string())),
        });
        Ok((Stdio { output: output.boxed(), input }, warnings))
    }

    /// Removes a container and waits until it is gone. Success if it does not exist.
    pub(super) async fn remove_container(&self, name: &str) {
        let options = RemoveContainerOptions { force: true, v: true, ..RemoveContainerOptions::default() };
        for _ in 0..200 {
            match self.client.remove_container(name, Some(options.clone())).await {
                Err(error) if is_missing(&error) => return,
                // It is already being removed, or was removed meanwhile.
                Ok(()) | Err(EngineError::DockerResponseServerError { status_code: 409, .. }) => {}
                Err(error) => {
                    tracing::warn!(%error, container = name, "a container could not be removed");
                    return;
                }
            }
            if self.client.inspect_container(name, None::<InspectContainerOptions>).await.is_err() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Removes a volume. Success if it does not exist.
    pub(super) async fn remove_volume(&self, name: &str) {
        for _ in 0..200 {
            match self.client.remove_volume(name, None::<RemoveVolumeOptions>).await {
                Ok(()) => return,
                Err(error) if is_missing(&error) => return,
                // The engine may still count the removed container as a user of the volume.
                Err(EngineError::DockerResponseServerError { status_code: 409, .. }) => {}
                Err(error) => {
                    tracing::warn!(%error, volume = name, "a volume could not be removed");
                    return;
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Removes everything that an instance has left.
    pub(super) async fn remove_all_of(&self, instance: &str) -> Result<(), Error> {
        for container in self.containers_of(instance).await? {
            self.remove_container(&container).await;
        }
        for volume in self.volumes_of(instance).await? {
            self.remove_volume(&volume).await;
        }
        Ok(())
    }

    /// Returns the containers and volumes of an instance.
    pub(super) async fn names_of(&self, instance: &str) -> Result<Vec<String>, Error> {
        let mut names = self.containers_of(instance).await?;
        names.extend(self.volumes_of(instance).await?);
        Ok(names)
    }

    async fn containers_of(&self, instance: &str) -> Result<Vec<String>, Error> {
        let filters = Some(of_instance(instance));
        let options = ListContainersOptions { all: true, filters, ..ListContainersOptions::default() };
        let found = self.client.list_containers(Some(options)).await;
        let found = found.map_err(|error| self.failed("list containers", &error))?;
        Ok(found.into_iter().filter_map(|container| container.id).collect())
    }

    async fn volumes_of(&self, instance: &str) -> Result<Vec<String>, Error> {
        let options = ListVolumesOptions { filters: Some(of_instance(instance)) };
        let found = self.client.list_volumes(Some(options)).await;
        let found = found.map_err(|error| self.failed("list volumes", &error))?;
        Ok(found.volumes.unwrap_or_default().into_iter().map(|volume| volume.name).collect())
    }

    /// Stops every process of a container, or lets them go on.
    pub(super) async fn pause(&self, name: &str, pauses: bool) -> Result<(), Error> {
        let done =
            if pauses { self.client.pause_container(name).await } else { self.client.unpause_container(name).await };
        done.map_err(|error| self.failed("pause or resume a container", &error))
    }

    /// Returns what a container uses; zeros when it is gone.
    pub(super) async fn usage(&self, name: &str) -> Usage {
        let options = StatsOptions { stream: false, one_shot: true };
        let mut stats = pin!(self.client.stats(name, Some(options)));
        let Some(Ok(stats)) = stats.next().await else { return Usage::default() };
        let memory = stats.memory_stats.unwrap_or_default();
        let cpu = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage).and_then(|usage| usage.total_usage).unwrap_or(0);
        let now = memory.usage.unwrap_or(0);
        Usage {
            memory: now,
            memory_peak: memory.max_usage.unwrap_or(now).max(now),
            cpu: std::time::Duration::from_nanos(cpu),
        }
    }

    fn labels(&self) -> HashMap<String, String> {
        HashMap::from([(LABEL.to_owned(), self.instance.clone())])
    }

    fn failed(&self, step: &str, error: &EngineError) -> Error {
        Error::Setup(format!("{step}: {error} (container engine at {})", self.host))
    }
}

fn of_instance(instance: &str) -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), vec![format!("{LABEL}={instance}")])])
}

/// Returns the engine that the environment names, or the first whose socket is there.
fn default_host() -> String {
    if let Some(host) = std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()) {
        return host;
    }
    let own = std::env::var("XDG_RUNTIME_DIR").map(|directory| format!("{directory}/podman/podman.sock"));
    let mut sockets = SOCKETS.map(str::to_owned).into_iter().chain(own);
    let found = sockets.find(|socket| Path::new(socket).exists());
    format!("unix://{}", found.unwrap_or_else(|| SOCKETS[0].to_owned()))
}

async fn reachable(path: &str) -> std::io::Result<()> {
    tokio::net::UnixStream::connect(path).await.map(drop)
}

fn unreachable(path: &str, error: &std::io::Error) -> Error {
    let mend = match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "your user may not use it; add the user to the group `docker` and log in again, or use rootless Podman"
        }
        std::io::ErrorKind::NotFound => {
            "there is no socket; install Docker or Podman and start it, or name its socket with sandbox.docker.host"
        }
        _ => {
            "the engine does not run; start it (`systemctl start docker`), or name another socket with sandbox.docker.host"
        }
    };
    Error::Setup(format!("no container engine answers at {path} ({error}): {mend}"))
}

fn is_missing(error: &EngineError) -> bool {
    matches!(error, EngineError::DockerResponseServerError { status_code: 404, .. })
}
